"""One task of a cluster that a platform started, whatever tells it of the others.

`tf_config`, `slurm` and `kubernetes` find the cluster; this runs the task's worker. The platform
restarts tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.cluster import Cluster
from paceline.engines.probe import find_silent
from paceline.errors import Ended, PassingFault, UserError
from paceline.job import Job, Place
from paceline.messages import Send, Warn
from paceline.place_kinds import PlaceName
from paceline.places.supervise.failures import WorkerFailed
from paceline.places.supervise.group import Group
from paceline.places.supervise.signals import forwarded_signals


def run_task(
    job: Job, cluster: Cluster, on: PlaceName, given_by: str, listen: Send
) -> dict[str, Any]:
    """Run this task's worker to its end; a failure names the tasks that do not answer.

    `given_by` names what told the platform's task of its cluster, for errors.
    """
    group = Group([build_task(job, cluster, on, given_by)], [None])
    others, names = [each for each in cluster.everyone if each != cluster.address], _names(cluster)

    def while_waiting() -> None:
        if absent := find_silent(others):
            tasks = (f"{names[address]} at {address}" for address in absent)
            listen(Warn(f"waiting for {', '.join(tasks)}"))

    try:
        with forwarded_signals(group), group:
            return group.run(listen, while_waiting)
    except PassingFault as fault:  # not for a person to correct: the platform tries again
        raise Ended(str(fault)) from fault
    except WorkerFailed as failure:
        gone = find_silent(others)
        reason = failure.reason + (f"; no answer from {', '.join(gone)}" if gone else "")
        raise WorkerFailed(cluster.name, reason, None) from failure


def build_task(job: Job, cluster: Cluster, on: PlaceName, given_by: str) -> Job:
    """Return the job of this task; raise UserError if it does not fit the cluster.

    All tasks of a cluster find the same error.
    """
    _check_given(job.place, cluster, given_by)
    place = replace(job.place, on=on, workers=cluster.num_workers, ps=len(cluster.ps))
    return replace(job, place=place, cluster=cluster)


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


def number(environment: Mapping[str, str], name: str) -> int:
    """Return the value of an environment variable that a platform sets to a number."""
    text = environment.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise UserError(f"{name} is {text!r}; it must be a whole number from 0 on")
    return int(text)


def _names(cluster: Cluster) -> dict[str, str]:
    """Return the name of the task at each address."""
    tasks = [Cluster(cluster.addresses, i, ps=cluster.ps) for i in range(len(cluster.addresses))]
    tasks += [Cluster(cluster.addresses, i, "ps", cluster.ps) for i in range(len(cluster.ps))]
    return {task.address: task.name for task in tasks}
