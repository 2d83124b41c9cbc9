"""Workers on this machine: fresh processes under this one, which imports no TensorFlow, takes the signals and reads their messages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
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
        raise UserError(f"workers is {job.place.workers}; this version runs 1, which computes all {job.experiment.replicas} replicas")
    run = RunFolder(job.run.run_dir)
    new = not run.path.exists()
    run.make()
    log = run.worker_log(job.worker)
    outcome: dict[str, Any] = {}
    objection: Exception | None = None
    with open(log, "ab") as log_file, _worker(job, log_file) as (process, messages), _forward_signals(process) as received:
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
    if received and not outcome.get("finished") and code in (0, -signal.SIGTERM, -signal.SIGKILL):
        raise Interrupted(received[0])
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


@contextmanager
def _forward_signals(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Turn Ctrl-C and SIGTERM into one SIGTERM for the worker, which saves and ends; a second one ends it at once."""
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        process.send_signal(signal.SIGTERM if len(received) == 1 else signal.SIGKILL)

    try:
        old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: a notebook or a service has its own signals
        old = {}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
