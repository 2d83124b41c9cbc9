"""Workers on a Spark cluster, one per task of a barrier stage, started again from the last checkpoint when one is lost.

`spark_session` has Spark itself, `spark_slots` counts, `spark_stage` is the driver's side of one attempt and `spark_task` what runs on
the executors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.cluster import Cluster
from paceline.config.job import Job
from paceline.errors import UserError
from paceline.places import Listen
from paceline.places.process_group import Group, WorkerFailed, forwarded_signals
from paceline.places.spark.session import spark_context
from paceline.places.spark.slots import SETTLED_S, wait_for_slots
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.storage import is_remote
from paceline.worker import chief

if TYPE_CHECKING:
    from pyspark import SparkContext

REPLACED_S = 60.0
"""So long a cluster has to replace an executor that was lost."""


def launch(job: Job, listen: Listen) -> dict[str, Any]:
    """Run the workers to their end. Raises UserError, WorkerFailed or Interrupted."""
    if job.place.min_workers:
        raise UserError(
            "--min-workers is not for --on spark; give as many --workers as the cluster has slots"
        )
    if not is_remote(job.run.run_dir):  # absolute, because an executor has a folder of its own
        job = replace(job, run=replace(job.run, run_dir=str(Path(job.run.run_dir).absolute())))
    run = RunFolder(job.run.run_dir)
    if not job.dry_run and (result := chief.finished(run, job)):
        listen(answer := {"kind": "result", **result, "run_dir": run.where, "already": True})
        return answer
    with run.begun(), spark_context(job.place.spark, run.log("spark")) as context:
        return _supervise(context, job, run, listen)


def _supervise(context: SparkContext, job: Job, run: RunFolder, listen: Listen) -> dict[str, Any]:
    """Start the stage until it has come to its end, or fails once too often without a new checkpoint."""
    from paceline.places.spark.stage import Stage

    failures, patience_s, count = 0, SETTLED_S, job.place.workers
    jobs = [
        replace(job, cluster=Cluster(index=index)) for index in range(count)
    ]  # the stage will know their addresses

    def warn(text: str) -> None:
        listen({"kind": "warning", "text": text})

    while True:
        wait_for_slots(
            context, f"--workers {count}", count, job.place.start_timeout, warn, patience_s
        )
        saved = False
        try:
            with Stage(context, job, run) as stage:
                group = Group(jobs, [run.log(each.cluster.name) for each in jobs], stage.start)
                try:
                    with forwarded_signals(group), group:
                        return group.run(listen)
                finally:
                    saved = group.saved
        except WorkerFailed as failure:
            failures, patience_s = 1 if saved else failures + 1, REPLACED_S
            if failures > job.place.max_restarts:
                raise
            warn(f"{failure}; starting {count} again from the last checkpoint")
