"""Many small jobs, each writing a file of its own, as tasks of an ordinary Spark stage: `data.pool.run_jobs` on a cluster.

Spark may run a task again after a failure, or twice at a time (speculation). A job must therefore write its file whole, under its
name last, and the same bytes every time; then it does not matter who wins.
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

from paceline.config.job import Spark
from paceline.data.tools.pool import Tick
from paceline.data.tools.progress_bar import late_bar
from paceline.errors import UserError
from paceline.places.spark.session import explain_failure, spark_context
from paceline.places.spark.slots import count_slots, wait_for_slots

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.2
START_TIMEOUT_S = 300.0
"""As in a training: the longest wait for executors."""


def run_jobs_on_spark(
    spark: Spark,
    log: Path,
    folders: Sequence[Path],
    function: Callable[[Any, Tick], Any],
    jobs: Sequence[Any],
    what: str,
    total: int,
    console: Console | None,
) -> Iterator[Any]:
    """Results when all are there. Every executor must see all of `folders`."""
    if not jobs:
        return
    console = console or Console(stderr=True)
    with spark_context(spark, log) as context, late_bar(what, total, console) as advance:
        wait_for_slots(
            context, what, 1, START_TIMEOUT_S, lambda text: console.print(text, soft_wrap=True)
        )
        yield from _collect(
            context,
            partial(_run, function, [str(folder) for folder in folders]),
            jobs,
            what,
            total,
            advance,
        )


def _collect(
    context: SparkContext,
    run: Callable[[Any], Any],
    jobs: Sequence[Any],
    what: str,
    total: int,
    advance: Callable[[float], None],
) -> list[Any]:
    """In a thread, so that this one can show how far it is, and be interrupted."""
    from pyspark import InheritableThread

    name, results, errors = f"paceline-{secrets.token_hex(4)}", list[Any](), list[Exception]()

    def submit() -> None:
        try:
            context.setJobGroup(name, f"paceline: {what}", interruptOnCancel=True)
            results.extend(context.parallelize(jobs, len(jobs)).map(run).collect())
        except Exception as error:
            errors.append(error)

    thread, seen, had_slots = InheritableThread(target=submit, daemon=True), 0, time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(POLL_S)
        had_slots = time.monotonic() if count_slots(context)[0] else had_slots
        if time.monotonic() - had_slots > START_TIMEOUT_S:
            raise UserError(f"{what}: Spark has no executors any more; the same command goes on")
        done = _tasks_done(context, name)
        advance(total * (done - seen) / len(jobs))
        seen = done
    if errors:
        raise explain_failure(errors[0]) from errors[0]
    return results


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for info in infos if info for stage in info.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage)


def _run(function: Callable[[Any, Tick], Any], folders: Sequence[str], job: Any) -> Any:
    """On an executor."""
    for folder in folders:
        if not os.access(folder, os.R_OK | os.X_OK):
            raise UserError(
                f"host {socket.gethostname()} cannot read {folder}; every executor must see it under this path"
            )
    return function(job, lambda amount: None)
