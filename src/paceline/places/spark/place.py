"""Workers on a Spark cluster, one per task of a barrier stage.

`session` owns Spark, `stage` is the driver's side of an attempt, `task` runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.job import Job
from paceline.messages import Send
from paceline.places.spark.session import spark_context
from paceline.run_folder.folder import RunFolder
from paceline.storage.locations import is_remote
from paceline.supervise.interface import OpenPlace

if TYPE_CHECKING:
    from pyspark import SparkContext

    from paceline.places.spark.stage import RemoteWorker


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """Make the run folder, and start Spark unless it runs in this process already."""
    if not is_remote(job.run.run_dir):  # absolute, because an executor has its own folder
        job = replace(job, run=replace(job.run, run_dir=str(Path(job.run.run_dir).absolute())))
    run = RunFolder(job.run.run_dir)
    with run.begun(), spark_context(job.place.spark, run.log("spark")) as context:
        yield OpenPlace(job, partial(_prepare, job, context), listen)


@contextmanager
def _prepare(job: Job, context: SparkContext, count: int) -> Iterator[list[RemoteWorker]]:
    """Run a barrier stage of `count` workers."""
    from paceline.places.spark.stage import open_stage

    with open_stage(context, replace(job, place=job.place.with_workers(count))) as workers:
        yield workers
