"""A group of worker processes under this one: started, listened to, watched and ended. Imports no TensorFlow.

What to do about a failure (start again, give up) is the place's business, not this file's.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.job import Job
from paceline.places import Listen
from paceline.worker import MESSAGES

WAITING_EVERY_S = 10.0
SILENT_S = 10.0
"""A live process says so every second; one that is silent for longer is stopped or starved."""


class WorkerFailed(Exception):
    """A worker ended, or stood still, in a way that nobody foresaw; the text says which one, with its error and its log."""

    def __init__(self, worker: int, reason: str, log: Path | None) -> None:
        super().__init__(f"worker {worker} failed: {reason}" + (f"; its log is {log}" if log else ""))
        self.worker, self.reason = worker, reason


class Interrupted(Exception):
    """A signal ended the run; everything was saved."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Group:
    """The workers of one attempt. `run` listens to them until all have ended; leaving the `with` block leaves no process behind.

    A worker without a log file writes to this process's standard error.
    """

    def __init__(self, jobs: Sequence[Job], logs: Sequence[Path | None]) -> None:
        self._jobs, self._logs = jobs, logs
        self._processes: list[subprocess.Popen[bytes]] = []
        self._messages: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._heard: list[float] = []
        self.saved_steps = 0

    def __enter__(self) -> Group:
        for index, (job, log) in enumerate(zip(self._jobs, self._logs, strict=True)):
            process, reader = _start(job, log)
            self._processes.append(process)
            threading.Thread(target=self._read, args=(index, reader), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin:
                process.stdin.close()

    def signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def run(self, listen: Listen, while_waiting: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Pass on what workers tell until every one has ended well; raise what went wrong first. `while_waiting` is called now and
        then before they have met."""
        place, running = self._jobs[0].place, len(self._processes)
        self._heard = [time.monotonic()] * running
        progress, limit, outcome = time.monotonic(), place.start_timeout, dict[str, Any]()
        objection: Exception | None = None
        started, asked = False, time.monotonic()
        while running:
            if not started and time.monotonic() - asked > WAITING_EVERY_S:
                while_waiting()
                asked = time.monotonic()
            try:
                index, message = self._messages.get(timeout=1.0)
            except queue.Empty:
                self._check_progress(progress, limit)
                continue
            self._heard[index] = time.monotonic()
            if message is None:
                running -= 1
                self._check_end(index, outcome)
                continue
            kind = message["kind"]
            if kind == "alive":
                self._check_progress(progress, limit)
                continue
            progress = time.monotonic()
            started = started or kind == "start"
            if kind in ("block", "beat"):
                limit = place.stall_timeout
            if kind == "error":
                raise UserError(message["text"])
            if kind == "crash":
                raise WorkerFailed(index, message["text"], self._logs[index])
            if kind in ("result", "description"):
                outcome = message
            if kind == "saved":
                self.saved_steps += 1
            if kind != "beat" and (index == 0 or kind != "start"):
                objection = self._tell(listen, message, objection)
        if objection and not isinstance(objection, StopIteration):
            raise objection
        return outcome

    def _tell(self, listen: Listen, message: dict[str, Any], objection: Exception | None) -> Exception | None:
        try:
            listen(message)
        except Exception as error:  # a listener's own; the workers save what they have before anyone hears of it
            self.signal(signal.SIGTERM)
            return objection or error
        return objection

    def _check_end(self, index: int, outcome: dict[str, Any]) -> None:
        code = self._processes[index].wait()
        if code == 0:
            return
        time.sleep(0.2)  # its last words may still be in the queue: an error that explains the end comes first
        while not self._messages.empty():
            other, message = self._messages.get()
            if message and message["kind"] == "error":
                raise UserError(message["text"])
            if message and message["kind"] == "crash":
                raise WorkerFailed(other, message["text"], self._logs[other])
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise WorkerFailed(index, reason, self._logs[index])

    def _check_progress(self, progress: float, limit: float) -> None:
        now = time.monotonic()
        if now - progress < limit:
            return
        silent = [index for index, heard in enumerate(self._heard) if now - heard > min(SILENT_S, limit / 2)]
        what = "is stopped or starved" if silent else "makes no progress"
        index = silent[0] if silent else 0
        raise WorkerFailed(index, f"it {what}: nothing for {limit:.0f} s", self._logs[index])

    def _read(self, index: int, reader: int) -> None:
        with os.fdopen(reader) as lines:
            for line in lines:
                self._messages.put((index, json.loads(line)))
        self._messages.put((index, None))


def _start(job: Job, log: Path | None) -> tuple[subprocess.Popen[bytes], int]:
    """A worker in a session of its own, so that a Ctrl-C reaches only this process."""
    reader, writer = os.pipe()
    with open(log, "ab") if log else nullcontext(sys.stderr) as log_file:
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
    process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
    process.stdin.flush()
    return process, reader


@contextmanager
def forwarded_signals(group: Group) -> Iterator[list[int]]:
    """Turn Ctrl-C and SIGTERM into one SIGTERM for the workers, which save and end; a second one ends them at once."""
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        group.signal(signal.SIGTERM if len(received) == 1 else signal.SIGKILL)

    try:
        old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: a notebook or a service has its own signals
        old = {}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
