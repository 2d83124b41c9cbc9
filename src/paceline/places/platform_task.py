"""Runs one task of a cluster that TF_CONFIG, Slurm or Kubernetes describes.

`tf_config`, `slurm` and `kubernetes` find the cluster. The platform restarts tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from paceline.engines.probe import find_silent
from paceline.errors import Ended, PassingFault, UserError, WorkerFailed
from paceline.job import Cluster, Job, Place
from paceline.messages import Send, Warn
from paceline.supervise.interface import OpenPlace
from paceline.supervise.process import LocalWorker

WAITING_EVERY_S = 10.0


def open_task(job: Job, cluster: Cluster, given_by: str, listen: Send) -> OpenPlace:
    """Return the place of one task; raise UserError if the job does not fit the cluster.

    All tasks find the same error. `given_by` names where the cluster description came from.
    """
    for name, given, there in (
        ("workers", job.place.workers, cluster.num_workers),
        ("ps", job.place.ps, len(cluster.ps)),
    ):
        if given not in (getattr(Place(), name), there):
            raise UserError(
                f"{name} is {given}, but the cluster of {given_by} has {there}; "
                f"leave out --{name}, or use --on local to start processes on this machine"
            )
    place = replace(job.place, workers=cluster.num_workers, ps=len(cluster.ps))
    own = replace(job, place=place, cluster=cluster)
    return OpenPlace(own, lambda count: _prepare(own, listen), listen)


@contextmanager
def _prepare(job: Job, listen: Send) -> Iterator[list[LocalWorker]]:
    """Yield the worker of this task; a failure names the tasks that do not answer."""
    names, ended = _names_of_others(job.cluster), threading.Event()
    threading.Thread(target=_warn_while_waiting, args=(names, listen, ended), daemon=True).start()
    try:
        yield [LocalWorker(job, log=None)]
    except PassingFault as fault:  # not for a person to correct: the platform tries again
        raise Ended(str(fault)) from fault
    except WorkerFailed as failure:
        gone = find_silent(list(names))
        reason = failure.reason + (f"; no answer from {', '.join(gone)}" if gone else "")
        raise WorkerFailed(job.cluster.name, reason, None) from failure
    finally:
        ended.set()


def _names_of_others(cluster: Cluster) -> dict[str, str]:
    """Return the name of each other task by its address."""
    tasks = [Cluster(cluster.addresses, i, ps=cluster.ps) for i in range(len(cluster.addresses))]
    tasks += [Cluster(cluster.addresses, i, "ps", cluster.ps) for i in range(len(cluster.ps))]
    return {task.address: task.name for task in tasks if task.address != cluster.address}


def _warn_while_waiting(names: Mapping[str, str], listen: Send, ended: threading.Event) -> None:
    """Name the other tasks that have not answered, until all of them have."""
    while not ended.wait(WAITING_EVERY_S) and (absent := find_silent(list(names))):
        tasks = ", ".join(f"{names[address]} at {address}" for address in absent)
        if not ended.is_set():
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
