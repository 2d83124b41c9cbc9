"""A Ray cluster: the connection, what a worker needs there, and the actors of a run."""

import math
import os
import signal
import socket
import time
from contextlib import suppress

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paceline.engines.base import WantsStop, check_facts
from paceline.engines_more.ray_actors.actor import Actor, Evaluator, Status
from paceline.errors import UserError, first_line
from paceline.experiment.fields import Json
from paceline.job import Job

CONNECT_S = 8.0
ANSWER_S = 30.0  # within which a living actor reports its step, even while it computes
PLACED_S = 10.0
"""How long the others wait for an actor that Ray has not placed. It may join later."""


def connect_to_ray(job: Job) -> None:
    """Connect to the cluster of --ray.address or RAY_ADDRESS.

    If neither is given, start a cluster here that ends with this process.
    """
    address = job.place.ray.address or os.environ.get("RAY_ADDRESS", "")
    check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: Json = {"address": address}
    if not address or address == "local":
        needed = math.ceil(
            (job.place.workers + job.place.ray.evaluator) * job.place.ray.cpus_per_worker
        )
        cores = max(len(os.sched_getaffinity(0)), needed)
        options = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)  # ray.init replaces it
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR", namespace="paceline")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"cannot use the Ray cluster at {address or 'this machine'}: {first_line(error)}; "
            "check that its head is there and accepts this token (RAY_AUTH_MODE, RAY_AUTH_TOKEN)"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)


def check_address(address: str) -> None:
    """Fail at once if nothing listens at the address; Ray itself would wait for minutes."""
    if "://" in address:
        raise UserError(
            f"ray.address is {address!r}; "
            "give host:port of the cluster's head (usually port 6379), or auto"
        )
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise UserError(
            f"there is no Ray cluster at {address} ({error}); start one there with `ray start "
            "--head`, or leave out --ray.address and RAY_ADDRESS to have one started here"
        ) from error


def resources_of(job: Job, who: str = "a worker") -> dict[str, float]:
    """Return what Ray reserves for a worker, after checking that some node has it. Workers beyond
    what is free wait for further nodes."""
    cpus, gpus = job.place.ray.cpus_per_worker, job.place.ray.gpus_per_worker
    if gpus < 0:
        gpus = float(bool(ray.cluster_resources().get("GPU")) and job.place.devices != "cpu")
    wanted = {"num_cpus": cpus, "num_gpus": gpus}
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [{"num_cpus": node.get("CPU", 0), "num_gpus": node.get("GPU", 0)} for node in alive]
    if not any(all(node[name] >= wanted[name] for name in wanted) for node in nodes):
        raise UserError(
            f"{who} needs {needs(wanted)}, but no node of the Ray cluster has them "
            f"(the nodes have: {'; '.join(needs(node) for node in nodes[:8])}); "
            "use a smaller --ray.cpus-per-worker or --ray.gpus-per-worker"
        )
    return wanted


def needs(resources: dict[str, float]) -> str:
    """Describe resources in a message."""
    return f"{resources['num_cpus']:g} CPUs and {resources['num_gpus']:g} GPUs"


class Crew:
    """The actors that are ready, and those that wait for resources or still build their core."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._wanted = job.place.workers
        self.resources = resources_of(job)
        # build() future -> (actor, status() future)
        self._waiting = dict[ObjectRef, tuple[ActorHandle, ObjectRef]]()
        self._expected = Json()  # fingerprint
        self._died: RayError | None = None  # of the last actor that never became ready
        self.ready = list[ActorHandle]()
        self.hosts = dict[ActorHandle, str]()
        self.recruit()

    def recruit(self) -> None:
        """Ask Ray for the actors that are missing."""
        options = {**self.resources, "max_restarts": 0, "concurrency_groups": {"control": 1}}
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
                f"no worker got {needs(self.resources)} from the Ray cluster within "
                f"{time.monotonic() - began:.0f} s; free some, ask for less, or use a longer "
                "--start-timeout"
            )

    def take_in(self, timeout_s: float = 0.0) -> list[str]:
        """Add the actors that have become ready; return why others cannot take part. Those are not
        asked for again."""
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
            with suppress(RayError):
                found[asked[reference]] = ray.get(reference)
        self.ready = list(found)
        return found

    def team(self) -> list[ActorHandle]:
        """Return the ready actors that share the replicas, at most as many as are wanted."""
        return self.ready[: max(0, self._wanted)]

    def close(self) -> None:
        for actor in [*self.ready, *(actor for actor, _ in self._waiting.values())]:
            ray.kill(actor)


class RunningEvaluator:
    """The actor `Evaluator`, on the driver's node, which has the run folder."""

    def __init__(self, job: Job) -> None:
        node = ray.get_runtime_context().get_node_id()
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        kind = ray.remote(num_cpus=job.place.ray.cpus_per_worker, scheduling_strategy=here)
        self._limit_s = job.place.start_timeout
        self._actor = kind(Evaluator).remote(job, os.getcwd())
        self._done = self._actor.run.remote()

    def finish(self, wants_stop: WantsStop) -> None:
        """Wait for the evaluation of the last checkpoint. Raise its error."""
        deadline = time.monotonic() + self._limit_s
        while not ray.wait([self._done], timeout=1.0)[0] and time.monotonic() < deadline:
            wants_stop()  # shows that this process is active
        ray.get(self._done, timeout=0)


def wait(references: list[ObjectRef], timeout_s: float) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Return which answers are there after that time at the latest, and which are not."""
    if not references:
        return [], []
    done, others = ray.wait(references, num_returns=len(references), timeout=timeout_s)
    return done, others
