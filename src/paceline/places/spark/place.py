"""Workers on a Spark cluster, one per task of a barrier stage.

`session` owns Spark itself, `slots` counts tasks, `stage` is the driver's side of one attempt,
`task` runs on the executors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.cluster import Cluster
from paceline.config.job import Job
from paceline.errors import UserError
from paceline.messages import Send, Warn
from paceline.places.process_group import Group, forwarded_signals
from paceline.places.restarts import run_with_restarts
from paceline.places.spark.session import spark_context
from paceline.places.spark.slots import SETTLED_S, wait_for_slots
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.storage import is_remote
from paceline.worker.training import find_finished

if TYPE_CHECKING:
    from pyspark import SparkContext

REPLACED_S = 60.0
"""The time that a cluster has to replace an executor that was lost."""


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run the workers to their end. Raises UserError, WorkerFailed or Interrupted."""
    if job.place.min_workers:
        raise UserError(
            "--min-workers is not for --on spark; give as many --workers as the cluster has slots"
        )
    if not is_remote(job.run.run_dir):  # absolute, because an executor has a folder of its own
        job = replace(job, run=replace(job.run, run_dir=str(Path(job.run.run_dir).absolute())))
    run = RunFolder(job.run.run_dir)
    if not job.dry_run and (finished := find_finished(run, job.experiment)):
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

    def attempt(workers: int) -> dict[str, Any]:
        nonlocal wait_s
        what = f"--workers {workers}"
        wait_for_slots(context, what, workers, job.place.start_timeout, warn, wait_s)
        wait_s = REPLACED_S
        # only the tasks know the addresses
        jobs = [replace(job, cluster=Cluster(index=index)) for index in range(workers)]
        with Stage(context, job, run) as stage:
            group = Group(jobs, [run.log(each.cluster.name) for each in jobs], stage.start)
            with forwarded_signals(group), group:
                return group.run(listen)

    return run_with_restarts(job.place, attempt, listen)
