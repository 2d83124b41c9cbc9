"""Finds the first cause of a failure: the first to report is often not the first that failed."""

import queue
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from paceline.errors import AddressTaken, PassingFault, UserError, WorkerFailed
from paceline.messages import Crash, Error, Message
from paceline.supervise.interface import Inbox, Worker
from paceline.supervise.watchdog import Watchdog, stopped

EXPLAIN_S = 3.0
"""How long the workers have to report the first cause."""
LOST = 4
"""Rank of a report that says only that another worker is lost."""


def first_cause(
    workers: Sequence[Worker], inbox: Inbox, watchdog: Watchdog, index: int, report: Message | None
) -> UserError | WorkerFailed:
    """Return what to raise: of all reports, the one that explains the others.

    `report` is the last message of worker `index`, or None if it ended without one. Which message
    arrives first decides nothing: those that train have a moment to report too. Once training has
    begun, a worker that died explains itself, and the memory of the others is asked at once: those
    that notice the loss end, too.
    """
    reports, deadline = {index: report}, time.monotonic() + EXPLAIN_S
    trainers = {i for i, worker in enumerate(workers) if not worker.job.cluster.serves}
    while True:
        first = min(reports, key=lambda each: (_rank(reports[each]), each))
        rank, waiting = _rank(reports[first]), trainers & {*watchdog.running()} - reports.keys()
        if not rank or not waiting or (watchdog.began and rank < LOST):
            return _to_exception(workers[first], reports[first])
        if time.monotonic() > deadline:
            if rank == LOST and (silent := watchdog.silent(EXPLAIN_S)):
                return worker_failed(workers[silent[0]], stopped(EXPLAIN_S))
            return _to_exception(workers[first], reports[first])
        with suppress(queue.Empty):
            other, message = inbox.get(timeout=0.1)
            watchdog.heard(other)
            if message is None:
                watchdog.ended(other)
            if isinstance(message, Error | Crash) or (message is None and workers[other].wait()):
                reports.setdefault(other, message)


def _rank(report: Message | None) -> int:
    """Return how well a report explains a failure; 0 is best: only a person can correct it."""
    if isinstance(report, Error):
        return report.address_taken + 2 * report.passing
    return LOST if isinstance(report, Crash) and report.lost else LOST - 1


def worker_failed(worker: Worker, reason: str = "") -> WorkerFailed:
    """Return the error of a worker; without a reason, its exit code is the reason."""
    if not reason:
        code = worker.wait()
        reason = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    return WorkerFailed(worker.job.cluster.name, reason, worker.log)


def _to_exception(worker: Worker, report: Message | None) -> UserError | WorkerFailed:
    if isinstance(report, Error):
        kind = AddressTaken if report.address_taken else UserError
        return (PassingFault if report.passing else kind)(report.text)
    return worker_failed(worker, report.text if isinstance(report, Crash) else "")
