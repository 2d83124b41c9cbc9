"""Workers on this machine: fresh processes under this one, which imports no TensorFlow, takes the signals and reads their messages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paceline.errors import UserError
from paceline.job import Job
from paceline.places import Listen
from paceline.runs import RunFolder
from paceline.worker import MESSAGES


class WorkerFailed(Exception):
    """A worker ended in a way that nobody foresaw; the text says which, with its error and its log."""


class Interrupted(Exception):
    """A signal ended the run. The first one lets it save; a second one, or one before training began, ends it at once."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def launch(job: Job, listen: Listen) -> dict[str, Any]:
    """Run one worker to its end. Raises UserError, WorkerFailed or Interrupted."""
    if job.place.workers > 1:
        raise UserError(
            f"workers is {job.place.workers}; this version runs 1, which computes all {job.experiment.replicas} replicas"
        )
    run = RunFolder(job.run.run_dir)
    new = not run.path.exists()
    run.make()
    log = run.worker_log(job.worker)
    outcome: dict[str, Any] = {}
    objection: Exception | None = None
    with _Signals() as signals, open(log, "ab") as log_file, _worker(job, log_file) as (process, messages):
        signals.pass_on_to(process)
        for line in messages:
            message = json.loads(line)
            message.pop("worker")
            if message["kind"] in ("result", "error", "crash", "description"):
                outcome = message
            try:
                listen(message)
            except Exception as error:  # a listener's own; the worker saves what it has before anyone hears of it
                objection = objection or error
                process.terminate()
        code = process.wait()
    if objection and not isinstance(objection, StopIteration):
        raise objection
    if outcome.get("kind") == "error":
        if new and not run.exists():  # nothing began, so nothing is left behind
            shutil.rmtree(run.path)
        raise UserError(outcome["text"])
    if signals.received and not outcome.get("finished") and code in (0, -signal.SIGTERM, -signal.SIGKILL):
        raise Interrupted(signals.received[0])
    if code != 0 or not outcome:
        reason = outcome.get("text") or (f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        raise WorkerFailed(f"worker {job.worker} failed: {reason}; its log is {log}")
    return outcome


@contextmanager
def _worker(job: Job, log_file: Any) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """Start a worker in a session of its own, so that a Ctrl-C reaches only this process; it is gone when the block ends."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.worker"],
        stdin=subprocess.PIPE,
        stdout=log_file,
        stderr=log_file,
        pass_fds=[writer],
        env=os.environ | {MESSAGES: str(writer), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    os.close(writer)
    assert process.stdin
    try:
        process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
        process.stdin.flush()
        with os.fdopen(reader) as messages:
            yield process, messages
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdin.close()


class _Signals:
    """Turns Ctrl-C and SIGTERM into one SIGTERM for the worker, which saves and ends; a second one ends it at once.

    They are caught from before the worker starts, so that none comes between.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._old: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():  # a notebook or a service has its own signals
            self._old = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def pass_on_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self.received:
            process.terminate()

    def _handle(self, number: int, _: object) -> None:
        self.received.append(number)
        if self._process:
            self._process.send_signal(signal.SIGTERM if len(self.received) == 1 else signal.SIGKILL)
