"""Runs one task of a cluster that TF_CONFIG, Slurm or Kubernetes describes.

`tf_config`, `slurm` and `kubernetes` find the cluster. The platform restarts tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from paceline.cluster import Cluster
from paceline.engines.probe import find_silent
from paceline.errors import Ended, PassingFault, UserError
from paceline.job import Job, Place
from paceline.messages import Send, Warn
from paceline.places.supervise.failures import WorkerFailed
from paceline.places.supervise.open_place import OpenPlace
from paceline.places.supervise.process import LocalWorker

WAITING_EVERY_S = 10.0


class PlatformTask(OpenPlace):
    """A task, whose worker is a process here; a failure names the tasks that do not answer."""

    def __init__(self, job: Job, cluster: Cluster, given_by: str, listen: Send) -> None:
        """Raise UserError if the job does not fit the cluster; all tasks find the same error.

        `given_by` names where the cluster description came from, for error messages.
        """
        _check_given(job.place, cluster, given_by)
        place = replace(job.place, workers=cluster.num_workers, ps=len(cluster.ps))
        super().__init__(replace(job, place=place, cluster=cluster))
        self._names = _names(cluster)
        self._listen = listen

    @contextmanager
    def workers(self, count: int) -> Iterator[list[LocalWorker]]:
        cluster, ended = self.job.cluster, threading.Event()
        threading.Thread(target=self._warn_while_waiting, args=(ended,), daemon=True).start()
        try:
            yield [LocalWorker(self.job, log=None)]
        except PassingFault as fault:  # not for a person to correct: the platform tries again
            raise Ended(str(fault)) from fault
        except WorkerFailed as failure:
            gone = find_silent(list(self._names))
            reason = failure.reason + (f"; no answer from {', '.join(gone)}" if gone else "")
            raise WorkerFailed(cluster.name, reason, None) from failure
        finally:
            ended.set()

    def _warn_while_waiting(self, ended: threading.Event) -> None:
        """Name the other tasks that have not answered, until all of them have."""
        while not ended.wait(WAITING_EVERY_S) and (absent := find_silent(list(self._names))):
            tasks = (f"{self._names[address]} at {address}" for address in absent)
            if not ended.is_set():
                self._listen(Warn(f"waiting for {', '.join(tasks)}"))


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


def _check_given(place: Place, cluster: Cluster, given_by: str) -> None:
    """Raise UserError for numbers of processes that the platform contradicts."""
    for name, given, there in (
        ("workers", place.workers, cluster.num_workers),
        ("ps", place.ps, len(cluster.ps)),
    ):
        if given not in (getattr(Place(), name), there):
            raise UserError(
                f"{name} is {given}, but the cluster of {given_by} has {there}; "
                f"leave out --{name}, or use --on local to start processes on this machine"
            )


def _names(cluster: Cluster) -> dict[str, str]:
    """Return the name of each other task by its address."""
    tasks = [Cluster(cluster.addresses, i, ps=cluster.ps) for i in range(len(cluster.addresses))]
    tasks += [Cluster(cluster.addresses, i, "ps", cluster.ps) for i in range(len(cluster.ps))]
    return {task.address: task.name for task in tasks if task.address != cluster.address}
