"""Workers on a Spark cluster, one per task of a barrier stage, started again from the last checkpoint when one is lost.

`spark_session` has Spark itself, `spark_stage` the driver's side of one attempt, `spark_task` what runs on the executors.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import chief
from paceline.errors import UserError
from paceline.job import Job
from paceline.places import Listen
from paceline.places.processes import Group, WorkerFailed, forwarded_signals
from paceline.places.spark_session import spark_context
from paceline.runs import RunFolder

if TYPE_CHECKING:
    from pyspark import SparkContext

SETTLED_S = 10.0
"""So long without another executor means that no more will come, on a cluster that does not say how many it will start."""
REPLACED_S = 60.0
"""So long a cluster has to replace an executor that was lost."""
WARN_EVERY_S = 10.0


def launch(job: Job, listen: Listen) -> dict[str, Any]:
    """Run the workers to their end. Raises UserError, WorkerFailed or Interrupted."""
    if job.place.min_workers:
        raise UserError("--min-workers is not for --on spark; give as many --workers as the cluster has slots")
    # absolute, because an executor has a folder of its own
    job = replace(job, run=replace(job.run, run_dir=str(Path(job.run.run_dir).absolute())))
    run = RunFolder(job.run.run_dir)
    if not job.dry_run and (result := chief.finished(run, job)):
        listen(answer := {"kind": "result", **result, "run_dir": str(run.path), "already": True})
        return answer
    new = not run.path.exists()
    run.make()
    try:
        with spark_context(job.place.spark, run.spark_log) as context:
            return _supervise(context, job, run, listen)
    except UserError:
        if new and not run.exists():  # nothing began, so nothing is left behind
            shutil.rmtree(run.path)
        raise


def _supervise(context: SparkContext, job: Job, run: RunFolder, listen: Listen) -> dict[str, Any]:
    """Start the stage until it has come to its end, or fails once too often without a new checkpoint."""
    from paceline.places.spark_stage import Stage

    failures, patience_s, count = 0, SETTLED_S, job.place.workers
    while True:
        wait_for_slots(context, job, patience_s, listen)
        saved = False
        try:
            with Stage(context, job, run) as stage:
                group = Group([job] * count, [run.worker_log(index) for index in range(count)], stage.start)
                try:
                    with forwarded_signals(group), group:
                        return group.run(listen)
                finally:
                    saved = group.saved
        except WorkerFailed as failure:
            failures, patience_s = 1 if saved else failures + 1, REPLACED_S
            if failures > job.place.max_restarts:
                raise
            listen({"kind": "warning", "text": f"{failure}; starting {count} again from the last checkpoint"})


def wait_for_slots(context: SparkContext, job: Job, patience_s: float, listen: Listen) -> None:
    """Until all tasks can run at once. Spark itself would wait for ten minutes and not tell how many slots there are."""
    wanted, expected = job.place.workers, _expected_executors(context)
    began = changed = warned = time.monotonic()
    seen = (-1, -1)
    while True:
        now, found = time.monotonic(), _slots(context)
        if found[0] >= wanted:
            return
        if found != seen:
            seen, changed = found, now
        complete = found[1] >= max(1, expected) and (_is_local(context) or now - changed > patience_s)
        if complete or now - began > job.place.start_timeout:
            raise UserError(
                f"--workers {wanted} needs {wanted} slots at once, but Spark has {found[0]} ({found[1]} executors, "
                f"spark.task.cpus {context.getConf().get('spark.task.cpus', '1')}); give fewer workers, or Spark more cores"
            )
        if now - warned > WARN_EVERY_S:
            warned = now
            listen({"kind": "warning", "text": f"waiting for Spark: {found[0]} slots of {wanted}, {found[1]} executors"})
        time.sleep(0.2)


def _slots(context: SparkContext) -> tuple[int, int]:
    """How many tasks can run at once, by the count that Spark checks a barrier stage with, and on how many executors."""
    if context._jsc is None:
        raise UserError("the Spark session was stopped; the same command goes on from the last checkpoint")
    scala = context._jsc.sc()
    slots = scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile())
    return slots, scala.getExecutorMemoryStatus().size() - (not _is_local(context))  # the driver is counted, too


def _is_local(context: SparkContext) -> bool:
    """Tasks in the driver's own Java: there is nothing to wait for."""
    return re.match(r"local(\[|$)", context.master) is not None


def _expected_executors(context: SparkContext) -> int:
    """How many the cluster will start; 0 where only time can tell. YARN and Kubernetes have two by default."""
    if cluster := re.match(r"local-cluster\[\s*(\d+)", context.master):
        return int(cluster[1])
    default = "2" if context.master.startswith(("yarn", "k8s")) else "0"
    return int(context.getConf().get("spark.executor.instances", default))
