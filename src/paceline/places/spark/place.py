"""Workers on a Spark cluster, one per task of a barrier stage.

`session` owns Spark itself, `stage` is the driver's side of one attempt, `task` runs on the
executors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Send, Warn
from paceline.places.spark.session import count_slots, expected_executors, is_local, spark_context
from paceline.run_folder.folder import RunFolder
from paceline.storage.locations import is_remote
from paceline.supervise.interface import OpenPlace

if TYPE_CHECKING:
    from pyspark import SparkContext

    from paceline.places.spark.stage import RemoteWorker

SETTLED_S = 10.0
"""If no executor comes for this long, no more are expected, unless the cluster says how many."""
REPLACED_S = 60.0
"""The time that a cluster has to replace an executor that was lost."""
WARN_EVERY_S = 10.0


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """Make the run folder, and start Spark unless it runs in this process already."""
    if not is_remote(job.run.run_dir):  # absolute, because an executor has its own folder
        job = replace(job, run=replace(job.run, run_dir=str(Path(job.run.run_dir).absolute())))
    run = RunFolder(job.run.run_dir)
    with run.begun(), spark_context(job.place.spark, run.log("spark")) as context:
        settled_s = chain([SETTLED_S], repeat(REPLACED_S))  # for each attempt
        prepare = partial(_prepare, job, context, settled_s, listen)
        yield OpenPlace(job, prepare, listen)


@contextmanager
def _prepare(
    job: Job, context: SparkContext, settled_s: Iterator[float], listen: Send, count: int
) -> Iterator[list[RemoteWorker]]:
    """Run a barrier stage of `count` workers, or fewer if Spark has too few slots and
    --min-workers allows it."""
    from paceline.places.spark.stage import open_stage

    place = job.place
    slots = _wait_for_slots(context, count, next(settled_s), place.start_timeout, listen)
    if slots < min(count, place.min_workers or count):
        executors, cpus = count_slots(context)[1], context.getConf().get("spark.task.cpus", "1")
        raise UserError(
            f"--workers {count} needs {count} slots at once, but Spark has {slots} ({executors} "
            f"executors, spark.task.cpus {cpus}); give fewer workers, or Spark more cores"
        )
    if slots < count:
        listen(Warn(f"Spark has {slots} slots; continuing with {slots} workers, not {count}"))
    with open_stage(context, replace(job, place=place.with_workers(min(slots, count)))) as workers:
        yield workers


def _wait_for_slots(
    context: SparkContext, wanted: int, settled_s: float, timeout_s: float, listen: Send
) -> int:
    """Wait until `wanted` tasks can run at once, or until no more executors come. Return how many
    can.

    Spark itself would wait for ten minutes, or for ever, without a number.
    """
    began = changed = warned = time.monotonic()
    seen = (-1, -1)
    while True:
        now, (slots, executors) = time.monotonic(), count_slots(context)
        if (slots, executors) != seen:
            seen, changed = (slots, executors), now
        settled = is_local(context) or now - changed > settled_s
        all_here = executors >= expected_executors(context) and settled
        if slots >= wanted or all_here or now - began > timeout_s:
            return slots
        if now - warned > WARN_EVERY_S:
            warned = now
            found = f"{slots} slots of {wanted}, {executors} executors"
            listen(Warn(f"waiting for Spark: {found}"))
        time.sleep(0.2)
