"""Workers on a Ray cluster. One process of this machine is the driver: only it connects to Ray.

With the exchange `object-store`, the driver is also the chief. With `collective`, actors only run
TensorFlow workers on the nodes, and the driver relays their messages. If the driver fails, it is
started again from the last checkpoint.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.cluster import Cluster
from paceline.errors import PassingFault, UserError
from paceline.job import Job
from paceline.messages import Crash, Error, Message, Result, Send, Warn
from paceline.places.supervise.failures import Interrupted, WorkerFailed
from paceline.places.supervise.group import Group
from paceline.places.supervise.open_place import OpenPlace
from paceline.places.supervise.process import LocalWorker
from paceline.requests import RelayRequest
from paceline.run_folder.folder import DRIVER_FILE, RunFolder
from paceline.storage.locations import is_remote

METHODS = ("gradients", "weights")


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """Check what Ray needs, and make the run folder."""
    method, cpus = job.experiment.sync.method, job.place.ray.cpus_per_worker
    if not find_spec("ray"):
        raise UserError(
            "--on ray needs the package ray; install it with pip install 'paceline[ray]'"
        )
    if method not in METHODS:
        raise UserError(f"sync.method is {method!r}; on Ray it is one of {', '.join(METHODS)}")
    if cpus < 0:
        raise UserError(f"ray.cpus-per-worker is {cpus:g}; it must be 0 or more")
    with RunFolder(job.run.run_dir).begun():
        yield RayPlace(job)


class RayPlace(OpenPlace):
    """Starts one process here, the driver; it finds the workers in the cluster."""

    @contextmanager
    def workers(self, count: int) -> Iterator[list[LocalWorker]]:
        ray = self.job.place.ray
        cores = self.job.place.cores or int(ray.cpus_per_worker)
        place = replace(self.job.place.with_workers(count), cores=cores)
        request = RelayRequest() if ray.exchange == "collective" else self.job.request
        log = RunFolder(self.job.run.run_dir).log(self.job.cluster.name)
        yield [LocalWorker(replace(self.job, place=place, request=request), log)]


def relay(job: Job, send: Send, stop: threading.Event) -> bool:
    """Start the workers in the cluster, and pass their messages to `send` until they end.

    Stops them when `stop` is set; returns whether it was.
    """
    import ray

    from paceline.engines_more.object_store.ray_cluster import connect_to_ray

    connect_to_ray(job)
    hosts = _start_hosts(job)
    addresses = ray.get([host.address.remote() for host in hosts])
    jobs = _build_worker_jobs(job, tuple(addresses))
    runs = [host.run.remote(each.to_json()) for host, each in zip(hosts, jobs, strict=True)]
    unasked = hosts
    while True:
        if stop.is_set():
            unasked = [host for host in unasked if not _call(host, "interrupt")]
        done, running = ray.wait(runs, num_returns=len(runs), timeout=0.2)
        try:
            if _pass_on_messages(hosts, send):
                return stop.is_set()
            failed = any(ray.get(done))
        except ray.exceptions.RayActorError as error:
            reason = str(error).splitlines()[0]
            raise RuntimeError(f"a worker's node or actor is gone: {reason}") from error
        if failed:
            # wait a moment: the error of a different worker may explain this one
            done, _ = ray.wait(runs, num_returns=len(runs), timeout=1.0)
            outcomes = ((addresses[runs.index(each)], ray.get(each)) for each in done)
            _raise_first(dict(outcomes))
        if not running:
            return stop.is_set()


def _build_worker_jobs(job: Job, addresses: tuple[str, ...]) -> list[Job]:
    count = len(addresses)
    place = job.place.with_workers(count)
    folder = job.run.run_dir
    run = replace(job.run, run_dir=folder if is_remote(folder) else str(Path(folder).resolve()))
    return [
        replace(job, request=None, place=place, run=run, cluster=Cluster(addresses, index))
        for index in range(count)
    ]


def _call(host: Any, method: str) -> Any:
    """Call a method that a host answers while its `run` continues."""
    import ray

    return ray.get(getattr(host, method).options(concurrency_group="control").remote())


def _pass_on_messages(hosts: list[Any], send: Send) -> bool:
    """Send the chief's messages and all warnings; return whether the run was finished before."""
    for host in hosts:
        for message in _call(host, "messages"):
            if host is hosts[0] or isinstance(message, Warn):
                send(message)
            if isinstance(message, Result) and message.already:
                return True
    return False


def _raise_first(outcomes: dict[str, Error | Crash | None]) -> None:
    """Raise an error that a person can correct, or else the first other one."""
    for outcome in outcomes.values():
        if isinstance(outcome, Error):
            raise (PassingFault if outcome.passing else UserError)(outcome.text)
    for address, outcome in outcomes.items():
        if outcome:
            raise RuntimeError(f"the worker at {address} failed: {outcome.text}")


def _start_hosts(job: Job) -> list[Any]:
    """Return an actor for each worker, or fewer if Ray can schedule only these.

    If there is room, the chief's actor is on the driver's node, because it writes the run folder.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from paceline.engines_more.object_store.ray_cluster import PLACED_S, needs, resources_of

    resources = resources_of(job)
    kind = ray.remote(**resources, max_restarts=0, concurrency_groups={"control": 1})(Host)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    chief = kind.options(scheduling_strategy=here).remote(os.getcwd())
    hosts = [chief, *(kind.remote(os.getcwd()) for _ in range(1, job.place.workers))]
    proof = RunFolder(job.run.run_dir).path / f"{DRIVER_FILE}{os.getpid()}"
    proof.touch()
    sees = {host.sees.remote(str(proof.resolve())): host for host in hosts}
    began, scheduled = time.monotonic(), list[Any]()
    while len(scheduled) < len(hosts) and time.monotonic() - began < (
        PLACED_S if scheduled else 0.9 * job.place.start_timeout
    ):
        scheduled, _ = ray.wait(list(sees), num_returns=len(sees), timeout=0.5)
    usable = [host for reference, host in sees.items() if reference in scheduled]
    if chief not in usable:
        raise UserError(
            f"the chief got no {needs(resources)} from the Ray cluster; free some, or ask for less"
        )
    _check_run_folder(job, proof, next(iter(sees)))
    for host in set(hosts) - set(usable):
        ray.kill(host)
    return usable


def _check_run_folder(job: Job, proof: Path, chief_sees_it: Any) -> None:
    """Raise UserError if the chief's node does not see the file `proof` of the run folder."""
    import ray

    if not is_remote(job.run.run_dir) and not ray.get(chief_sees_it):
        raise UserError(
            "the chief does not run on the driver's node, and its own node does not see "
            f"{proof.parent.resolve()}; give a --run-dir that all nodes see, "
            "or --ray.exchange object-store"
        )
    proof.unlink()


class Host:
    """An actor that runs one TensorFlow worker on its node. The worker ends with it."""

    def __init__(self, folder: str) -> None:
        # relative paths start at the driver's folder if this node sees it
        with suppress(OSError):
            os.chdir(folder)
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._interrupt: Callable[[int], None] | None = None

    def sees(self, path: str) -> bool:
        return Path(path).exists()

    def address(self) -> str:
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, values: dict[str, Any]) -> Error | Crash | None:
        """Run the worker to its end; return its failure."""
        group = Group([LocalWorker(Job.from_json(values), log=None)])
        self._interrupt = group.interrupt
        try:
            with group, suppress(Interrupted):
                group.run(self._messages.put)
        except UserError as error:
            return Error(str(error), passing=isinstance(error, PassingFault))
        except WorkerFailed as failure:
            return Crash(failure.reason)
        return None

    def messages(self) -> list[Message]:
        """Return the worker's messages since the last call."""
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def interrupt(self) -> bool:
        """Let the worker save and end; return False if there is none yet."""
        if self._interrupt:
            self._interrupt(signal.SIGTERM)
        return self._interrupt is not None
