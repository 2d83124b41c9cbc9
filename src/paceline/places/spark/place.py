"""Workers on a Spark cluster, one per task of a barrier stage.

`session` owns Spark itself, `slots` counts tasks, `stage` is the driver's side of one attempt,
`task` runs on the executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Send, Warn
from paceline.places.spark.session import count_slots, spark_context
from paceline.places.spark.slots import SETTLED_S, wait_for_slots
from paceline.places.supervise.failures import RoomForFewer
from paceline.places.supervise.open_place import OpenPlace
from paceline.run_folder.folder import RunFolder
from paceline.storage.locations import is_remote

if TYPE_CHECKING:
    from pyspark import SparkContext

    from paceline.places.spark.remote_worker import RemoteWorker

REPLACED_S = 60.0
"""The time that a cluster has to replace an executor that was lost."""


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """Make the run folder, and start Spark unless it runs in this process already."""
    if not is_remote(job.run.run_dir):  # absolute, because an executor has its own folder
        job = replace(job, run=replace(job.run, run_dir=str(Path(job.run.run_dir).absolute())))
    run = RunFolder(job.run.run_dir)
    with run.begun(), spark_context(job.place.spark, run.log("spark")) as context:
        yield SparkPlace(job, context, listen)


class SparkPlace(OpenPlace):
    """Runs a barrier stage for each attempt."""

    def __init__(self, job: Job, context: SparkContext, listen: Send) -> None:
        super().__init__(job)
        self._context = context
        self._listen = listen
        self._wait_s = SETTLED_S

    @contextmanager
    def workers(self, count: int) -> Iterator[list[RemoteWorker]]:
        from paceline.places.spark.stage import Stage

        self._wait_for_room(count)
        self._wait_s = REPLACED_S
        job = replace(self.job, place=self.job.place.with_workers(count))
        with Stage(self._context, job, RunFolder(job.run.run_dir)) as stage:
            yield stage.workers

    def has_room(self, count: int) -> bool:
        return count_slots(self._context)[0] >= count

    def _wait_for_room(self, workers: int) -> None:
        """Wait for a slot for each worker; raise RoomForFewer if fewer come and are enough."""
        place = self.job.place

        def warn(text: str) -> None:
            self._listen(Warn(text))

        try:
            wait_for_slots(
                self._context,
                f"--workers {workers}",
                workers,
                place.start_timeout,
                warn,
                self._wait_s,
            )
        except UserError as error:
            slots = count_slots(self._context)[0]
            if not place.min_workers or slots < place.min_workers:
                raise
            raise RoomForFewer(slots, str(error).split(";")[0]) from None
