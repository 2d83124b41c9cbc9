"""Runs one task of a cluster that TF_CONFIG, Slurm or Kubernetes describes.

`tf_config`, `slurm` and `kubernetes` find the cluster. The platform restarts tasks.
"""

import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

from paceline.engines.probe import find_silent, open_server, tell
from paceline.errors import Ended, PassingFault, UserError, WorkerFailed
from paceline.job import Cluster, Job, Place
from paceline.messages import LOST, Message, Send, Start, Warn
from paceline.supervise.diagnosis import EXPLAIN_S
from paceline.supervise.interface import OpenPlace
from paceline.supervise.process import LocalWorker
from paceline.supervise.watchdog import NO_PROGRESS

WAITING_EVERY_S = 10.0
BEAT, DONE = b".", b"!"
BEAT_EVERY_S = 1.0
LAST_S = 10.0
"""The time in which an idle task that starts late must answer, after the training has ended."""


def open_task(job: Job, cluster: Cluster, given_by: str, listen: Send) -> OpenPlace:
    """Return the place of one task; raise UserError if the job does not fit the cluster. All tasks
    find the same error. `given_by` names where the cluster description came from."""
    for name, given, there in (
        ("workers", job.place.workers, cluster.num_workers),
        ("ps", job.place.ps, len(cluster.ps)),
    ):
        if given not in (getattr(Place(), name), there):
            raise UserError(
                f"{name} is {given}, but the cluster of {given_by} has {there}; "
                f"leave out --{name}, or use --on local to start processes on this machine"
            )
    cluster = replace(cluster, chief_trains=cluster.chief_trains or job.place.chief_trains)
    place = replace(job.place, workers=cluster.num_workers, ps=len(cluster.ps))
    own = replace(job, place=place, cluster=cluster)
    begun = threading.Event()

    def listen_until_start(message: Message) -> None:
        if isinstance(message, Start):
            begun.set()
        listen(message)

    return OpenPlace(own, lambda count: _prepare(own, listen, begun), listen_until_start)


@contextmanager
def _prepare(job: Job, listen: Send, begun: threading.Event) -> Iterator[list[LocalWorker]]:
    """Yield the worker of this task; a failure names the tasks that do not answer."""
    names, worker, reasons = _names_of_others(job.cluster), LocalWorker(job, log=None), list[str]()

    def watch() -> None:
        try:
            _warn_while_waiting(names, listen, begun)
        except UserError as error:  # its worker may wait for the lost one for minutes
            reasons.append(str(error))
            worker.send_signal(signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    try:
        with accompany(job.cluster.idle if job.cluster.is_chief else ()):
            yield [worker]
    except PassingFault as fault:  # not for a person to correct: the platform tries again
        raise Ended(str(fault)) from fault
    except UserError as error:
        begun.set()
        if names:
            listen(Warn(str(error)))
            tell(job.cluster.address, str(error))
        raise
    except WorkerFailed as failure:
        if reasons:
            raise UserError(reasons[0]) from failure
        if gone := find_silent(list(names)):
            time.sleep(EXPLAIN_S)  # one that cannot train needs a moment before it tells why
            gone = find_silent(gone)
        own, others = job.cluster.name, ", ".join(f"{names[each]} at {each}" for each in gone)
        reason = failure.reason + f"; no answer from {others}" * bool(gone)
        if gone and failure.reason.startswith((LOST, NO_PROGRESS)):
            reason = f"no answer as a worker of Paceline; {own} reports: {failure.reason}"
            own = others
        raise WorkerFailed(own, reason, None) from failure
    finally:
        begun.set()


def _names_of_others(cluster: Cluster) -> dict[str, str]:
    """Return the name of each other task by its address."""
    tasks = [Cluster(cluster.addresses, i, ps=cluster.ps) for i in range(len(cluster.addresses))]
    tasks += [Cluster(cluster.addresses, i, "ps", cluster.ps) for i in range(len(cluster.ps))]
    return {task.address: task.name for task in tasks if task.address != cluster.address}


def _warn_while_waiting(names: Mapping[str, str], listen: Send, begun: threading.Event) -> None:
    """Name the other tasks that have not answered, until training begins. Raises UserError if one
    of them cannot train."""
    while not begun.wait(WAITING_EVERY_S):
        absent = find_silent(list(names))
        tasks = ", ".join(f"{names[address]} at {address}" for address in absent)
        if tasks and not begun.is_set():
            listen(Warn(f"waiting for {tasks}"))


def build_cluster(addresses: Sequence[str], index: int, num_servers: int) -> Cluster:
    """Return the cluster of numbered tasks, and which of its processes task `index` is.

    Without parameter servers, every task is a worker and task 0 the chief. With M parameter
    servers, task 0 is the chief, which computes nothing, and the last M tasks are the servers.
    """
    if num_servers and len(addresses) < num_servers + 2:
        raise UserError(
            f"ps is {num_servers}, but there are {len(addresses)} tasks; parameter servers need a "
            f"chief and workers beside them: start {num_servers + 2} tasks or more"
        )
    split = len(addresses) - num_servers
    members, servers = tuple(addresses[:split]), tuple(addresses[split:])
    if index >= split:
        return Cluster(members, index - split, "ps", servers)
    return Cluster(members if len(addresses) > 1 else (), index, ps=servers)


def number(environment: Mapping[str, str], name: str) -> int:
    """Return the value of an environment variable that a platform sets to a number."""
    text = environment.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise UserError(f"{name} is {text!r}; it must be a whole number from 0 on")
    return int(text)


def wait_for_chief(job: Job) -> None:
    """Wait as an idle ps task (`--ignore-ps`) until the chief has ended well.

    The chief's command is connected to each of them and sends a byte every second, and a last one
    when the training has ended well. Raise ConnectionError if the chief never comes or is gone.
    """
    chief, place = job.cluster.addresses[0], job.place
    with open_server(job.cluster.address) as server, suppress(TimeoutError):
        server.settimeout(place.start_timeout)
        while True:
            connection, _ = server.accept()
            heard = b""
            with connection, suppress(OSError):
                connection.settimeout(place.stall_timeout)
                byte = heard = connection.recv(1)
                while byte == BEAT:
                    byte = connection.recv(1)
                if byte == DONE:
                    return
            if heard == BEAT:
                raise ConnectionError(f"the chief at {chief} is gone")
    raise ConnectionError(f"no sign of the chief at {chief} within {place.start_timeout:.0f} s")


@contextmanager
def accompany(addresses: Sequence[str]) -> Iterator[None]:
    """Stay connected to the idle tasks while the chief trains; tell them if that ends well."""
    ended, well = threading.Event(), threading.Event()
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        for address in addresses:
            pool.submit(_beat, address, ended, well)
        try:
            yield
            well.set()
        finally:
            ended.set()


def _beat(address: str, ended: threading.Event, well: threading.Event) -> None:
    connection = None
    while not ended.wait(BEAT_EVERY_S):
        connection = _send(BEAT, address, connection)
    deadline = time.monotonic() + LAST_S
    while well.is_set() and time.monotonic() < deadline:
        if connection := _send(DONE, address, connection):
            break
        time.sleep(0.2)
    if connection:
        connection.close()


def _send(byte: bytes, address: str, connection: socket.socket | None) -> socket.socket | None:
    """Send a byte; return the connection, which may be a new one, or None if that failed."""
    host, port = address.rsplit(":", 1)
    with suppress(OSError):
        connection = connection or socket.create_connection((host.strip("[]"), int(port)), 2.0)
        connection.sendall(byte)
        return connection
    return None
