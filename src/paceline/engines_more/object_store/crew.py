"""The actors of a run: asking Ray for them, comparing them, and noticing who is lost."""

from __future__ import annotations

import contextlib
import os
import time

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import RayError

from paceline.engines.base import check_facts
from paceline.engines_more.object_store.actor import Actor, Status
from paceline.engines_more.object_store.ray_cluster import PLACED_S, needs, resources_of
from paceline.errors import UserError
from paceline.experiment.fields import Json
from paceline.job import Job

ANSWER_S = 30.0  # within which a living actor reports its step, even while it computes


class Crew:
    """The actors that are ready, and those that wait for resources or still build their core."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._wanted = job.place.workers
        self._resources = resources_of(job)
        # build() future -> (actor, status() future)
        self._waiting = dict[ObjectRef, tuple[ActorHandle, ObjectRef]]()
        self._expected = Json()  # fingerprint
        self._died: RayError | None = None  # of the last actor that never became ready
        self.ready = list[ActorHandle]()
        self.hosts = dict[ActorHandle, str]()
        self.recruit()

    def recruit(self) -> None:
        """Ask Ray for the actors that are missing."""
        options = {**self._resources, "max_restarts": 0, "concurrency_groups": {"control": 1}}
        kind = ray.remote(**options)(Actor)
        for _ in range(self._wanted - len(self.ready) - len(self._waiting)):
            actor = kind.remote(self._job, os.getcwd())
            self._waiting[actor.build.remote()] = actor, actor.status.remote()

    def meet(self, fingerprint: Json) -> None:
        """Wait for the first actors: all of them, or those that Ray could place.

        `fingerprint` is the driver's. The actors must have its data and libraries, and the kind of
        CPU of the first of them.
        """
        self._expected = {name: fingerprint[name] for name in fingerprint if name != "cpu"}
        began = time.monotonic()
        while self._waiting and time.monotonic() - began < 0.9 * self._job.place.start_timeout:
            if refused := self.take_in(0.2):
                raise UserError(refused[0])
            placed, _ = wait([status for _, status in self._waiting.values()], 0.0)
            if self.ready and not placed and time.monotonic() - began > PLACED_S:
                return
        if not self.ready:
            raise self._died or UserError(
                f"no worker got {needs(self._resources)} from the Ray cluster within "
                f"{time.monotonic() - began:.0f} s; free some, ask for less, or give a longer "
                "--start-timeout"
            )

    def take_in(self, timeout_s: float = 0.0) -> list[str]:
        """Add the actors that have become ready; return why others cannot take part.

        Those are not asked for again.
        """
        refused = []
        for reference in wait(list(self._waiting), timeout_s)[0]:
            actor, placed = self._waiting.pop(reference)
            try:
                facts, status = ray.get([reference, placed])
                self._expected.setdefault("cpu", facts["cpu"])
                what = f"the worker on {status.host} differs from the others"
                check_facts(what, self._expected, facts)
                self.hosts[actor] = status.host
                self.ready.append(actor)
            except UserError as error:
                refused.append(str(getattr(error, "cause", error)))
                ray.kill(actor)
                self._wanted -= 1
            except RayError as error:  # the next `recruit` asks for another
                self._died = error
        return refused

    def survivors(self) -> dict[ActorHandle, Status]:
        """Return the actors that answer, with the status of each. The others are killed."""
        asked = {actor.status.remote(): actor for actor in self.ready}
        done, silent = wait(list(asked), ANSWER_S)
        for reference in silent:
            ray.kill(asked[reference])
        found = dict[ActorHandle, Status]()
        for reference in done:
            with contextlib.suppress(RayError):
                found[asked[reference]] = ray.get(reference)
        self.ready = list(found)
        return found

    def team(self) -> list[ActorHandle]:
        """Return the ready actors that share the replicas, at most as many as are wanted."""
        return self.ready[: max(0, self._wanted)]

    def close(self) -> None:
        for actor in [*self.ready, *(actor for actor, _ in self._waiting.values())]:
            ray.kill(actor)


def wait(references: list[ObjectRef], timeout_s: float) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Return which answers are there after that time at the latest, and which are not."""
    if not references:
        return [], []
    done, others = ray.wait(references, num_returns=len(references), timeout=timeout_s)
    return done, others
