"""Workers on this machine: one process or several, started again from the last checkpoint when one is lost."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paceline.config.cluster import Cluster
from paceline.config.job import Job
from paceline.errors import AddressTaken
from paceline.places import Listen
from paceline.places.process_group import Group, WorkerFailed, forwarded_signals
from paceline.run_folder.folder import RunFolder

ADDRESS_TRIES = 5

JobsOf = Callable[[Job, int], list[Job]]


def launch(job: Job, listen: Listen) -> dict[str, Any]:
    """Run the workers to their end. Raises UserError, WorkerFailed or Interrupted."""
    return supervise(job, listen, _jobs)


def supervise(job: Job, listen: Listen, jobs_of: JobsOf) -> dict[str, Any]:
    """Run the processes that `jobs_of` (job, workers) names; they start again from the last checkpoint when one is lost."""
    run = RunFolder(job.run.run_dir)
    with run.begun():
        return _start_until_the_end(job, run, listen, jobs_of)


def _start_until_the_end(
    job: Job, run: RunFolder, listen: Listen, jobs_of: JobsOf
) -> dict[str, Any]:
    """Start the group until it has come to its end, or fails once too often without a new checkpoint."""
    workers, failures, taken = job.place.workers, 0, 0
    while True:
        jobs = jobs_of(job, workers)
        group = Group(jobs, [run.log(each.cluster.name) for each in jobs])
        try:
            with forwarded_signals(group), group:
                return group.run(listen)
        except AddressTaken as error:
            taken += 1
            if taken > ADDRESS_TRIES:
                raise
            listen({"kind": "warning", "text": f"{error}; starting again with other ports"})
        except WorkerFailed as failure:
            failures = 1 if group.saved else failures + 1
            if failures > job.place.max_restarts:
                if not job.place.min_workers or workers // 2 < job.place.min_workers:
                    raise
                workers, failures = workers // 2, 0
            listen(
                {
                    "kind": "warning",
                    "text": f"{failure}; starting {workers} again from the last checkpoint",
                }
            )


def _jobs(job: Job, workers: int) -> list[Job]:
    """One for each process, chief first; parameter servers have a chief that does not compute."""
    servers, members = job.place.ps, workers + bool(job.place.ps)
    found = _free_addresses(members + servers) if members > 1 else ()
    addresses, ps = found[:members], found[members:]
    clusters = [Cluster(addresses, index, ps=ps) for index in range(members)]
    clusters += [Cluster(addresses, index, "ps", ps) for index in range(servers)]
    place = replace(
        job.place, on="local", workers=workers, min_workers=min(job.place.min_workers, workers)
    )
    return [
        replace(job, place=place, cluster=cluster)
        for cluster in (clusters[:1] if job.dry_run else clusters)
    ]


def _free_addresses(count: int) -> tuple[str, ...]:
    """Free ports of this machine alone. Another program may take one before TensorFlow does: then others are chosen."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)
    finally:
        for each in sockets:
            each.close()
