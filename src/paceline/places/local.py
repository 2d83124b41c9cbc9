"""Workers on this machine: one process or several."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from paceline.cluster import Cluster
from paceline.job import Job
from paceline.messages import Send
from paceline.places.supervise.group import Group
from paceline.places.supervise.neighbors import MOST_WORKERS, Neighbors
from paceline.places.supervise.restarts import run_with_restarts
from paceline.places.supervise.signals import forwarded_signals
from paceline.runs.folder import RunFolder


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run the workers to their end. Raises UserError, WorkerFailed or Interrupted."""
    return run_processes(job, listen, _jobs)


def run_processes(
    job: Job, listen: Send, build_jobs: Callable[[Job, int], list[Job]]
) -> dict[str, Any]:
    """Run a process for each job of `build_jobs(job, workers)`, with restarts."""
    run = RunFolder(job.run.run_dir)

    def attempt(workers: int, listen: Send) -> dict[str, Any]:
        jobs = build_jobs(job, workers)
        logs = [run.log(each.cluster.name) for each in jobs]
        with ExitStack() as stack:
            start = stack.enter_context(Neighbors(workers)).start if _shares_memory(jobs) else None
            group = Group(jobs, logs, start)
            stack.enter_context(forwarded_signals(group))
            return stack.enter_context(group).run(listen)

    with run.begun():
        return run_with_restarts(job.place, attempt, listen)


def _shares_memory(jobs: list[Job]) -> bool:
    """Return whether these workers exchange vectors through memory, not over the network."""
    return 1 < len(jobs) <= MOST_WORKERS and not jobs[0].cluster.ps


def _jobs(job: Job, workers: int) -> list[Job]:
    """Return a job for each process, the chief's first.

    With parameter servers, one extra process, the chief, coordinates the workers.
    """
    num_servers, num_members = job.place.ps, workers + bool(job.place.ps)
    found = _free_addresses(num_members + num_servers) if num_members > 1 else ()
    addresses, ps = found[:num_members], found[num_members:]
    clusters = [Cluster(addresses, index, ps=ps) for index in range(num_members)]
    clusters += [Cluster(addresses, index, "ps", ps) for index in range(num_servers)]
    place = replace(job.place.with_workers(workers), on="local")
    return [
        replace(job, place=place, cluster=cluster)
        for cluster in (clusters[:1] if job.dry_run else clusters)
    ]


def _free_addresses(count: int) -> tuple[str, ...]:
    """Return addresses of this machine alone with free ports.

    Another program may take one before TensorFlow does: then `restarts` starts all again.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)
