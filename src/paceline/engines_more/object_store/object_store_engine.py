"""The object-store engine: actors of a Ray cluster exchange sums through its object store.

Every actor holds the whole state and its step. A round is one call of each actor: it finishes the
round before with the pieces of its mean, then computes the sum over its own replicas. Two actors
read each other's whole sums; with more, each actor first adds up one shard. The driver, a worker
process like any other, only passes references on; it never holds one vector per actor.

When an actor is lost, the survivors take the newest state among them and continue, each with more
replicas, until Ray has started another actor that joins them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import ray
import tensorflow as tf
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError

from paceline.engines import devices
from paceline.engines.base import WantsStop
from paceline.engines_more.object_store.actor import mean, num_shards
from paceline.engines_more.object_store.ray_cluster import Crew, Evaluation, connect_to_ray, wait
from paceline.errors import UserError, first_line
from paceline.experiment.fields import Json
from paceline.job import Job
from paceline.maths.metrics import (
    BlockResult,
    EvalResult,
    block_result,
    evaluate_splits,
    tail_scale,
)
from paceline.maths.state import State

if TYPE_CHECKING:
    from paceline.maths.replica import Core
    from paceline.maths.sums import Span

Answer = TypeVar("Answer")
ROUNDS_AHEAD = 2  # rounds that are under way, so that no actor waits for the driver
LOOK_EVERY_S = 10.0
WORKING_SHARE = 0.05  # of a core; actors that use more compute


def connect(job: Job, wants_stop: WantsStop) -> Callable[[Core], ObjectStoreEngine]:
    """Connect to Ray and ask for the actors. They build their cores while the driver builds its."""
    connect_to_ray(job)
    crew = Crew(job)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the driver computes nothing
    given = crew.resources["num_gpus"] > 0 and job.place.devices != "cpu"
    devices.gpus_elsewhere = int(given and tf.test.is_built_with_cuda())  # an actor uses the first
    return lambda core: ObjectStoreEngine(job, core, crew, wants_stop)


class Pending(NamedTuple):
    """A round that is under way: its steps [first, last), and references to its tails."""

    first: int
    last: int
    tails: list[ObjectRef]


class ObjectStoreEngine:
    """Passes references from call to call, and continues from the survivors' state after a loss.

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
        self._step = 0
        self._failures = 0  # since the last round that was completed
        self._pending = deque[Pending]()
        self._tails = dict[int, np.ndarray]()  # of the block, by the first step of the round
        self._events = list[str]()
        self._evaluation: Evaluation | None = None

    def check(self, facts: Json) -> None:
        self._crew.meet(facts)

    def load(self, state: State) -> State:
        self._form(ray.put((state.step, state.vectors)))
        self._step = state.step
        if self._job.place.ray.evaluator and not self._evaluation:
            self._evaluation = Evaluation(self._job)
        wanted = self._job.place.workers
        if len(self._team) < wanted:
            found = f"{len(self._team)} of {wanted} workers found a place on the Ray cluster"
            self._events.append(f"{found}; others may join")
        return state

    def state(self) -> State:
        step, vectors = self._retry(lambda: self._get([self._team[0].state.remote()[1]])[0])
        assert step == self._step
        return State(step, {name: np.array(vectors[name]) for name in self._core.layout.parts})

    def advance(self, start: int, stop: int) -> BlockResult:
        began = time.monotonic()
        self._let_others_join()
        self._tails.clear()
        while True:
            try:
                self._step = self._train(self._step, stop)
                break
            except RayError as error:
                self._step = self._recover(error)
        tails = np.concatenate([self._tails[first] for first in sorted(self._tails)])
        seconds = (time.monotonic() - began) / len(tails)
        events, self._events = self._events, []
        block = block_result(self._core, self._step, tails, seconds)
        return replace(block, events=tuple(events))

    def evaluate(self, final: bool) -> EvalResult:
        def rows_of(split: str, count: int) -> np.ndarray:
            """Divide the batches among the actors; the rows come back in the batches' order."""
            bounds = np.linspace(0, count, len(self._team) + 1).astype(int).tolist()
            calls = [
                actor.evaluate.remote(self._attempt, split, first, last)
                for actor, first, last in zip(self._team, bounds, bounds[1:], strict=False)
                if first < last
            ]
            return np.concatenate(self._get(calls))

        return evaluate_splits(
            self._core, final, lambda *split: self._retry(lambda: rows_of(*split))
        )

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
            self._retry(lambda: self._form(self._team[0].state.remote()[1]))

    def _train(self, first: int, stop: int) -> int:
        """Train rounds from `first` on; return the step reached, whose state every actor has."""
        start, before, pieces = first, None, list[ObjectRef]()
        while True:
            while (
                first < stop
                and len(self._pending) < ROUNDS_AHEAD
                and not (first > start and self._wants_stop())
            ):
                now = first, min(first + self._core.plan.round_steps, stop)
                pieces = self._start_round(before, now, pieces)
                before, first = now, now[1]
            if not self._pending:
                break
            self._take_tails()
        self._get([actor.finish.remote(self._attempt, before, *pieces) for actor in self._team])
        return first

    def _start_round(
        self, before: Span | None, now: Span, pieces: list[ObjectRef]
    ) -> list[ObjectRef]:
        """Call every actor for the round `now`; return references to the pieces of its mean."""
        shards = num_shards(len(self._team))
        calls = [actor.advance.options(num_returns=shards + 1) for actor in self._team]
        sums = [call.remote(self._attempt, before, now, *pieces) for call in calls]
        self._pending.append(Pending(*now, [row[-1] for row in sums]))
        if shards == 1:
            return [row[0] for row in sums]
        columns = zip(*(row[:-1] for row in sums), strict=True)
        return [
            actor.reduce.remote(self._attempt, *column)
            for actor, column in zip(self._team, columns, strict=True)
        ]

    def _take_tails(self) -> None:
        """Read the tails of the oldest round under way; only then is it no longer pending."""
        oldest, replicas = self._pending[0], self._core.experiment.replicas
        rows = mean(self._get(oldest.tails), replicas).reshape(self._core.plan.round_steps, -1)
        self._tails[oldest.first] = rows[: oldest.last - oldest.first] * tail_scale(replicas)
        self._pending.popleft()
        self._failures = 0

    def _form(self, state: ObjectRef) -> None:
        """Form the team; give every actor its part and the same state. Earlier calls are void."""
        self._attempt += 1
        self._team = self._crew.team()
        count = len(self._team)
        parts = enumerate(self._team)
        self._get([actor.load.remote(self._attempt, state, n, count) for n, actor in parts])

    def _recover(self, error: RayError) -> int:
        """Form a team of the survivors; return the step from which it continues."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            raise cause
        self._failures += 1
        before = set(self._team)
        found = self._crew.survivors()
        newest = max(found, key=lambda actor: found[actor].step, default=None)
        no_state = newest is None or found[newest].step < self._step
        if no_state or self._failures > self._job.place.max_restarts:
            raise error  # the run starts again from the last checkpoint
        self._crew.recruit()
        try:
            step = self._continue_from(newest)
        except RayError as another:
            return self._recover(another)
        finally:
            self._pending.clear()
        hosts = sorted(self._crew.hosts[actor] for actor in before - set(found))
        where = ", ".join(hosts) or "no host"
        self._events.append(
            f"lost a worker ({first_line(cause or error)}; lost on: {where}); "
            f"continuing with {len(self._team)} workers from step {step}"
        )
        return step

    def _continue_from(self, newest: ActorHandle) -> int:
        """Give everyone the state of this actor, take the tails up to it, and return its step."""
        reached, state = newest.state.remote()
        # the step of that very state: the actor may have advanced since it was asked
        step = int(self._get([reached])[0])
        self._form(state)
        self._pending = deque(each for each in self._pending if each.last <= step)
        while self._pending:
            self._take_tails()
        return step

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
