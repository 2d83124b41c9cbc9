"""Workers on a Ray cluster. One process here is the driver: it alone talks to Ray, and with the object store it is the chief, too.

With the exchange `collective`, actors only place TensorFlow workers in the cluster, fresh processes as everywhere, and the driver
relays what they tell. Either way the driver is started again from the last checkpoint when it cannot go on.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.config.cluster import Cluster
from paceline.config.job import Job
from paceline.errors import UserError
from paceline.messages import Crash, Error, Message, Result, Send, Warn
from paceline.places.local import run_processes
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.storage import is_remote

METHODS = ("gradients", "weights")


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run the driver to its end. Raises UserError, WorkerFailed or Interrupted."""
    if not find_spec("ray"):
        raise UserError(
            "--on ray needs the package ray; install it with pip install 'paceline[ray]'"
        )
    if job.experiment.sync.method not in METHODS:
        raise UserError(
            f"sync.method is {job.experiment.sync.method!r}; on Ray it is one of {', '.join(METHODS)}"
        )
    if job.place.ray.cpus_per_worker < 0:
        raise UserError(
            f"ray.cpus-per-worker is {job.place.ray.cpus_per_worker:g}; it must be 0 or more"
        )
    return run_processes(job, listen, _driver)


def _driver(job: Job, workers: int) -> list[Job]:
    """Return the job of the driver: with the exchange `collective` it only relays messages."""
    place = replace(
        job.place,
        on="ray",
        workers=workers,
        min_workers=min(job.place.min_workers, workers),
        cores=job.place.cores or int(job.place.ray.cpus_per_worker),
    )
    relays = job.place.ray.exchange == "collective"
    return [replace(job, place=place, kind="relay" if relays else "train")]


def relay(job: Job, send: Send, stop: threading.Event) -> None:
    """The driver's part with the exchange `collective`: place the workers, pass on what they tell, ask them to stop."""
    import ray

    from paceline.engines.object_store.engine import connect

    connect(job)
    hosts = _place(job)
    addresses = tuple(ray.get([host.address.remote() for host in hosts]))
    place = replace(
        job.place, workers=len(hosts), min_workers=min(job.place.min_workers, len(hosts))
    )
    run = replace(job.run, run_dir=str(Path(job.run.run_dir).resolve()))
    jobs = [
        replace(job, kind="train", place=place, run=run, cluster=Cluster(addresses, index))
        for index in range(len(hosts))
    ]
    running = {
        host.run.remote(each.to_json()): index
        for index, (host, each) in enumerate(zip(hosts, jobs, strict=True))
    }
    asked = False
    while running:
        if stop.is_set() and not asked:
            asked = bool(
                ray.get(
                    [host.interrupt.options(concurrency_group="control").remote() for host in hosts]
                )
            )
        done, _ = ray.wait(list(running), num_returns=len(running), timeout=0.2)
        try:
            for index, host in enumerate(hosts):
                for message in ray.get(host.messages.options(concurrency_group="control").remote()):
                    if index == 0 or isinstance(message, Warn):
                        send(message)
                    if isinstance(message, Result) and message.already:
                        return
            outcomes = {running[reference]: ray.get(reference) for reference in done}
        except ray.exceptions.RayActorError as error:
            raise RuntimeError(
                f"a worker's node or actor is gone: {str(error).splitlines()[0]}"
            ) from error
        if any(outcomes.values()):
            late, _ = ray.wait(
                list(running), num_returns=len(running), timeout=1.0
            )  # the error that explains another's end
            outcomes |= {running[reference]: ray.get(reference) for reference in late}
            _raise(outcomes, addresses)
        running = {
            reference: index for reference, index in running.items() if index not in outcomes
        }


def _place(job: Job) -> list[Any]:
    """One actor for each worker, the chief's beside the driver where there is room, because it writes the run folder. Where fewer find
    a place, as many as can share the replicas."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from paceline.engines.object_store.engine import PLACED_S, needs, resources_of

    resources = resources_of(job)
    kind = ray.remote(**resources, max_restarts=0, concurrency_groups={"control": 1})(Host)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    hosts = [
        kind.options(**({} if index else {"scheduling_strategy": here})).remote(os.getcwd())
        for index in range(job.place.workers)
    ]
    proof = RunFolder(job.run.run_dir).path / ".driver"
    proof.touch()
    sees = {host.sees.remote(str(proof.resolve())): host for host in hosts}
    began, placed = time.monotonic(), list[Any]()
    while len(placed) < len(hosts) and time.monotonic() - began < (
        PLACED_S if placed else 0.9 * job.place.start_timeout
    ):
        placed, _ = ray.wait(list(sees), num_returns=len(sees), timeout=0.5)
    chief = next(iter(sees))
    if chief not in placed:
        raise UserError(
            f"the chief got no {needs(resources)} from the Ray cluster; free some, or ask for less"
        )
    if not is_remote(job.run.run_dir) and not ray.get(chief):
        raise UserError(
            f"the chief found no place beside the driver, and its node does not see {proof.parent.resolve()}; give a --run-dir that all "
            "nodes see, or --ray.exchange object-store"
        )
    proof.unlink()
    usable = [sees[reference] for reference in sees if reference in placed]
    for host in set(hosts) - set(usable):
        ray.kill(host)
    return usable[: 1 << (len(usable).bit_length() - 1)]


def _raise(outcomes: dict[int, Error | Crash | None], addresses: tuple[str, ...]) -> None:
    """Raise the first failure; an error that a person can correct comes first."""
    for index, outcome in sorted(outcomes.items(), key=lambda item: not isinstance(item[1], Error)):
        if isinstance(outcome, Error):
            raise UserError(outcome.text)
        if outcome:
            raise RuntimeError(f"the worker at {addresses[index]} failed: {outcome.text}")


class Host:
    """An actor that runs one TensorFlow worker on its node. The worker ends with it."""

    def __init__(self, folder: str) -> None:
        with contextlib.suppress(
            OSError
        ):  # relative paths mean the same as for the driver, where its folder can be seen
            os.chdir(folder)
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._interrupt: Callable[[int], None] = lambda number: None

    def sees(self, path: str) -> bool:
        return Path(path).exists()

    def address(self) -> str:
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, values: dict[str, Any]) -> Error | Crash | None:
        """The worker's whole life; how it ended."""
        from paceline.places.failures import Interrupted, WorkerFailed
        from paceline.places.process_group import Group

        group = Group([Job.from_json(values)], [None])
        self._interrupt = group.interrupt
        try:
            with group:
                group.run(self._messages.put)
        except UserError as error:
            return Error(str(error))
        except WorkerFailed as failure:
            return Crash(failure.reason)
        except Interrupted:
            pass
        return None

    def messages(self) -> list[Message]:
        """What the worker has told since the last call; answered while `run` is under way."""
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def interrupt(self) -> bool:
        self._interrupt(signal.SIGTERM)
        return True
