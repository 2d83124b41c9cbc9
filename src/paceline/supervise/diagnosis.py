"""Finds the first cause of a failure: the worker that reports first is often not the one that
failed first."""

from __future__ import annotations

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


def first_cause(
    workers: Sequence[Worker], inbox: Inbox, watchdog: Watchdog, index: int, report: Message | None
) -> UserError | WorkerFailed:
    """Return what to raise: the first failure that is not only the loss of another worker.

    `report` is the last message of worker `index`, or None if it ended without one.
    """
    is_alone = len(workers) == 1  # then nobody else here can explain it
    reports, deadline = {index: report}, time.monotonic() + EXPLAIN_S * (not is_alone)
    while True:
        for other, message in reports.items():
            if not (isinstance(message, Crash) and message.lost):
                return _to_exception(workers[other], message)
        if time.monotonic() > deadline:
            if silent := watchdog.silent(EXPLAIN_S):
                return worker_failed(workers[silent[0]], stopped(EXPLAIN_S))
            return _to_exception(workers[index], report)
        with suppress(queue.Empty):
            other, message = inbox.get(timeout=0.1)
            watchdog.heard(other)
            if isinstance(message, Error | Crash) or (message is None and workers[other].wait()):
                reports.setdefault(other, message)


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
