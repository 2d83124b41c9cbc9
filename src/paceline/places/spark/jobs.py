"""Many small jobs as tasks of an ordinary Spark stage: `formats.pool.run_jobs` on a cluster.

Spark may run a task again after a failure, or twice at a time (speculation). So a job must write
the same bytes every time and rename its complete file last; then any of its runs may win.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from paceline.errors import UserError
from paceline.job import Spark
from paceline.places.spark.session import count_slots, explain_failure, spark_context
from paceline.places.spark.slots import wait_for_slots
from paceline.storage.progress_bar import late_bar

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.2
START_TIMEOUT_S = 300.0
"""The longest wait for executors, as in a training."""


def run_jobs_on_spark(
    spark: Spark,
    log: Path,
    folders: Sequence[Path],
    function: Callable[[Any], Any],
    jobs: Sequence[Any],
    what: str,
    console: Console | None,
) -> Iterator[Any]:
    """Yield the results when all jobs are done. Every executor must see all of `folders`."""
    if not jobs:
        return
    console = console or Console(stderr=True)
    with spark_context(spark, log) as context, late_bar(what, len(jobs), console) as advance:
        warn = partial(console.print, soft_wrap=True)
        wait_for_slots(context, what, 1, START_TIMEOUT_S, warn)
        run = partial(_run, function, [str(folder) for folder in folders])
        yield from _collect(context, run, jobs, what, advance)


def _collect(
    context: SparkContext,
    run: Callable[[Any], Any],
    jobs: Sequence[Any],
    what: str,
    advance: Callable[[float], None],
) -> list[Any]:
    """Run the jobs in a thread, so that this one can show the progress and be interrupted."""
    from pyspark import InheritableThread

    name = f"paceline-{secrets.token_hex(4)}"
    results: list[Any] = []
    errors: list[Exception] = []

    def submit() -> None:
        try:
            context.setJobGroup(name, f"paceline: {what}", interruptOnCancel=True)
            results.extend(context.parallelize(jobs, len(jobs)).map(run).collect())
        except Exception as error:
            errors.append(error)

    thread = InheritableThread(target=submit, daemon=True)
    thread.start()
    seen, had_slots = 0, time.monotonic()
    while thread.is_alive():
        thread.join(POLL_S)
        had_slots = time.monotonic() if count_slots(context)[0] else had_slots
        if time.monotonic() - had_slots > START_TIMEOUT_S:
            raise UserError(
                f"{what}: Spark has no executors any more; run the command again to continue"
            )
        done = _tasks_done(context, name)
        advance(done - seen)
        seen = done
    if errors:
        raise explain_failure(errors[0]) from errors[0]
    return results


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for info in infos if info for stage in info.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage)


def _run(function: Callable[[Any], Any], folders: Sequence[str], job: Any) -> Any:
    """Run one job on an executor."""
    for folder in folders:
        if not os.access(folder, os.R_OK | os.X_OK):
            raise UserError(
                f"host {socket.gethostname()} cannot read {folder}; "
                "every executor must see it under this path"
            )
    return function(job)
