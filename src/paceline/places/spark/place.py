"""Workers on a Spark cluster, one per task of a barrier stage.

`session` owns Spark itself, `slots` counts tasks, `stage` is the driver's side of one attempt,
`task` runs on the executors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster import Cluster
from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Send, Warn
from paceline.places.spark.session import spark_context
from paceline.places.spark.slots import SETTLED_S, count_slots, wait_for_slots
from paceline.places.supervise.failures import RoomForFewer
from paceline.places.supervise.group import Group
from paceline.places.supervise.restarts import run_with_restarts
from paceline.places.supervise.signals import forwarded_signals
from paceline.runs.finished import find_finished
from paceline.runs.folder import RunFolder
from paceline.storage.backends import is_remote

if TYPE_CHECKING:
    from pyspark import SparkContext

REPLACED_S = 60.0
"""The time that a cluster has to replace an executor that was lost."""


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run the workers to their end. Raises UserError, WorkerFailed or Interrupted."""
    if not is_remote(job.run.run_dir):  # absolute, because an executor has a folder of its own
        job = replace(job, run=replace(job.run, run_dir=str(Path(job.run.run_dir).absolute())))
    run = RunFolder(job.run.run_dir)
    if not job.dry_run and (finished := find_finished(run, job.experiment, listen)):
        listen(finished)
        return finished.values
    with run.begun(), spark_context(job.place.spark, run.log("spark")) as context:
        return _run(context, job, run, listen)


def _run(context: SparkContext, job: Job, run: RunFolder, listen: Send) -> dict[str, Any]:
    """Run the stage, with restarts; return the result."""
    from paceline.places.spark.stage import Stage

    wait_s = SETTLED_S

    def warn(text: str) -> None:
        listen(Warn(text))

    def attempt(workers: int, listen: Send) -> dict[str, Any]:
        nonlocal wait_s
        _wait_for_room(context, job, workers, warn, wait_s)
        wait_s = REPLACED_S
        own = replace(job, place=job.place.with_workers(workers))
        # only the tasks know the addresses
        jobs = [replace(own, cluster=Cluster(index=index)) for index in range(workers)]
        with Stage(context, own, run) as stage:
            group = Group(jobs, [run.log(each.cluster.name) for each in jobs], stage.start)
            with forwarded_signals(group), group:
                return group.run(listen)

    def has_room(workers: int) -> bool:
        return count_slots(context)[0] >= workers

    return run_with_restarts(job.place, attempt, listen, has_room)


def _wait_for_room(
    context: SparkContext, job: Job, workers: int, warn: Callable[[str], None], wait_s: float
) -> None:
    """Wait for a slot for each worker; raise RoomForFewer if fewer come and are enough."""
    try:
        timeout_s = job.place.start_timeout
        wait_for_slots(context, f"--workers {workers}", workers, timeout_s, warn, wait_s)
    except UserError as error:
        slots = count_slots(context)[0]
        if not job.place.min_workers or slots < job.place.min_workers:
            raise
        raise RoomForFewer(slots, str(error).split(";")[0]) from None
