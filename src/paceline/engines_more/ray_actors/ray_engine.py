"""The engine of Ray: actors of a cluster train together as workers of the collective engine do.

Every actor holds the whole state. The driver, a worker process like any other, calls all of them
for each block, and computes nothing itself. When an actor is lost, the driver gives the newest
state among the survivors to all, and they continue, each with more replicas, until Ray has started
another actor that joins them.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import ray
import tensorflow as tf
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError

from paceline.engines import devices
from paceline.engines.base import WantsStop
from paceline.engines_more.ray_actors.crew import Crew, RunningEvaluator, connect_to_ray, wait
from paceline.errors import UserError, first_line
from paceline.experiment.fields import Json
from paceline.job import Cluster, Job
from paceline.maths.metrics import BlockResult, EvalResult, block_result
from paceline.maths.state import State

if TYPE_CHECKING:
    from paceline.maths.replica import Core

Answer = TypeVar("Answer")
LOOK_EVERY_S = 10.0
WORKING_SHARE = 0.05  # of a core; actors that use more compute


def connect(job: Job, wants_stop: WantsStop) -> Callable[[Core], RayEngine]:
    """Connect to Ray and ask for the actors. They build their cores while the driver builds its."""
    connect_to_ray(job)
    crew = Crew(job)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the driver computes nothing
    given = crew.resources["num_gpus"] > 0 and job.place.devices != "cpu"
    devices.gpus_elsewhere = int(given and tf.test.is_built_with_cuda())  # an actor uses the first
    return lambda core: RayEngine(job, core, crew, wants_stop)


class RayEngine:
    """Calls the actors, and continues from the survivors' state after a loss.

    The team are the actors that share the replicas. Each time it is formed, a new attempt begins.
    """

    def __init__(
        self, job: Job, core: Core, crew: Crew, wants_stop: WantsStop = lambda: False
    ) -> None:
        self._job = job
        self._core = core
        self._crew = crew
        self._wants_stop = wants_stop
        self._team = list[ActorHandle]()
        self._attempt = 0
        self._token = secrets.token_hex()
        self._step = 0
        self._failures = 0  # since the last block that was completed
        self._events = list[str]()
        self._evaluation: RunningEvaluator | None = None

    def check(self, facts: Json) -> None:
        self._crew.meet(facts)

    def load(self, state: State) -> State:
        self._form(ray.put(state))
        self._step = state.step
        if self._job.place.ray.evaluator and not self._evaluation:
            self._evaluation = RunningEvaluator(self._job)
        wanted = self._job.place.workers
        if len(self._team) < wanted:
            found = f"{len(self._team)} of {wanted} workers found a place on the Ray cluster"
            self._events.append(f"{found}; others may join")
        return state

    def state(self) -> State:
        state: State = self._retry(self._chiefs_state)
        assert state.step == self._step
        return State(state.step, {name: np.array(state.vectors[name]) for name in state.vectors})

    def _chiefs_state(self) -> State:
        state: State = self._get([self._team[0].state.remote(self._attempt)])[0]
        return state

    def advance(self, start: int, stop: int) -> BlockResult:
        began = time.monotonic()
        self._let_others_join()
        block: BlockResult | None = None
        while block is None:
            try:
                block = self._call("advance", start, stop, self._wants_stop())
                self._failures = 0
            except RayError as error:
                state = self._recover(error)
                if done := state.step - start:  # the rest of the block is the next one
                    seconds = (time.monotonic() - began) / done
                    block = block_result(self._core, state.step, state.tails[-done:], seconds)
        self._step = block.step
        events, self._events = self._events, []
        return replace(block, events=tuple(events))

    def evaluate(self, final: bool) -> EvalResult:
        found: EvalResult = self._retry(lambda: self._call("evaluate", final))
        return found

    def agree(self, own: bool) -> bool:
        return own  # the chief alone runs the loop

    def close(self) -> None:
        if self._evaluation and self._step == self._core.plan.total_steps:
            self._evaluation.finish(self._wants_stop)
        self._crew.close()
        ray.shutdown()

    def _let_others_join(self) -> None:
        self._events += [f"a worker cannot join: {reason}" for reason in self._crew.take_in()]
        self._crew.recruit()
        count = len(self._crew.team())
        if count > len(self._team):
            self._events.append(f"continuing with {count} workers from step {self._step}")
            self._retry(lambda: self._form(self._team[0].held.remote()[1]))

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of every actor of the team; return the first one's answer."""
        calls = [getattr(actor, method) for actor in self._team]
        return self._get([call.remote(self._attempt, *arguments) for call in calls])[0]

    def _form(self, state: ObjectRef) -> None:
        """Form the team, and give every actor the same state. Earlier calls are void."""
        self._attempt += 1
        self._team = self._crew.team()
        addresses = tuple(self._get([each.begin.remote(self._attempt) for each in self._team]))
        given = ((actor, Cluster(addresses, n)) for n, actor in enumerate(self._team))
        self._get([a.load.remote(self._attempt, state, own, self._token) for a, own in given])

    def _recover(self, error: RayError) -> State:
        """Form a team of the survivors; return the state from which it continues."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            raise cause
        self._failures += 1
        before = set(self._team)
        found = self._crew.survivors()
        if not found or self._failures > self._job.place.max_restarts:
            raise error  # the run starts again from the last checkpoint
        self._crew.recruit()
        try:
            held = [actor.held.remote() for actor in found]
            steps = self._get([step for step, _ in held])
            if max(steps) < self._step:
                raise error
            newest = held[steps.index(max(steps))][1]
            state: State = self._get([newest])[0]
            self._form(newest)
        except RayError as another:
            if another is error:
                raise
            return self._recover(another)
        self._step = state.step
        hosts = sorted(self._crew.hosts[actor] for actor in before - set(found))
        where = ", ".join(hosts) or "no host"
        self._events.append(
            f"lost a worker ({first_line(cause or error)}; lost on: {where}); "
            f"continuing with {len(self._team)} workers from step {state.step}"
        )
        return state

    def _retry(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of a call that changes nothing; repeat it after a loss."""
        while True:
            try:
                return call()
            except RayError as error:
                self._recover(error)

    def _get(self, references: list[ObjectRef]) -> list[Any]:
        """Return the answers of the team. Actors that do not report are killed meanwhile.

        While actors compute, the parent is told that there is progress. If nobody computes and no
        answer comes, the parent's watchdog ends this process, as it does in every other place.
        """
        work_s, every_s = 0.0, min(LOOK_EVERY_S, self._job.place.stall_timeout / 4)
        while True:
            try:
                return list(ray.get(references, timeout=every_s))
            except GetTimeoutError:
                ray.get(wait(references, 0.0)[0])  # raises an error that is there already
                found = self._crew.survivors().values()
                before_s, work_s = work_s, sum(status.work_s for status in found)
                if work_s - before_s > WORKING_SHARE * every_s:
                    self._wants_stop()
