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

from paceline.errors import Ended, UserError
from paceline.job import Job
from paceline.places import Listen
from paceline.worker import MESSAGES

WAITING_EVERY_S = 10.0
SILENT_S = 10.0
"""A live process says so every second; one that is silent for longer is stopped or starved."""


class WorkerFailed(Ended):
    """A worker ended, or stood still, in a way that nobody foresaw; the text says which one, with its error and its log."""

    def __init__(self, worker: int, reason: str, log: Path | None) -> None:
        super().__init__(f"worker {worker} failed: {reason}" + (f"; its log is {log}" if log else ""))
        self.worker, self.reason = worker, reason


class Interrupted(Ended):
    """A signal ended the run. The first one lets it save; a second one, or one before training began, ends it at once."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Group:
    """The workers of one attempt. `run` listens to them until all have ended; leaving the `with` block leaves no process behind.

    A worker without a log file writes to this process's standard error.
    """

    def __init__(self, jobs: Sequence[Job], logs: Sequence[Path | None]) -> None:
        self._jobs, self._logs, self._place = jobs, logs, jobs[0].place
        self._processes: list[subprocess.Popen[bytes]] = []
        self._messages: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._heard, self._progress, self._limit = list[float](), 0.0, self._place.start_timeout
        self._received, self._started, self._outcome = list[int](), False, dict[str, Any]()
        self._objection: Exception | None = None
        self.saved = False

    def __enter__(self) -> Group:
        for index, (job, log) in enumerate(zip(self._jobs, self._logs, strict=True)):
            process, reader = _start(job, log)
            self._processes.append(process)
            threading.Thread(target=self._read, args=(index, reader), daemon=True).start()
        self._progress = time.monotonic()
        self._heard = [self._progress] * len(self._processes)
        if self._received:
            self._signal(signal.SIGTERM)
        return self

    def __exit__(self, *error: object) -> None:
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
            assert process.stdin
            process.stdin.close()

    def interrupt(self, number: int) -> None:
        """A person or a platform wants the run to stop: let it save; asked a second time, end it."""
        self._received.append(number)
        self._signal(signal.SIGTERM if len(self._received) == 1 else signal.SIGKILL)

    def run(self, listen: Listen, while_waiting: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Pass on what workers tell until every one has ended well; raise what went wrong first. `while_waiting` is called now and
        then before they have met."""
        try:
            self._listen_to_all(listen, while_waiting)
        except WorkerFailed:
            if self._received:
                raise Interrupted(self._received[0]) from None
            raise
        if self._objection and not isinstance(self._objection, StopIteration):
            raise self._objection
        if self._received and not self._outcome.get("finished"):
            raise Interrupted(self._received[0])
        return self._outcome

    def _listen_to_all(self, listen: Listen, while_waiting: Callable[[], None]) -> None:
        running, asked = len(self._processes), time.monotonic()
        while running and not self._outcome.get("already"):
            if not self._started and time.monotonic() - asked > WAITING_EVERY_S:
                while_waiting()
                asked = time.monotonic()
            try:
                index, message = self._messages.get(timeout=1.0)
            except queue.Empty:
                self._check_progress()
                continue
            self._heard[index] = time.monotonic()
            if message is None:
                running -= 1
                self._check_end(index)
            elif message["kind"] == "alive":
                self._check_progress()
            else:
                self._take(index, message, listen)

    def _take(self, index: int, message: dict[str, Any], listen: Listen) -> None:
        """Every message but a sign of life means progress."""
        self._progress, kind = time.monotonic(), message["kind"]
        self._started = self._started or kind == "start"
        self.saved = self.saved or kind == "saved"
        if kind in ("block", "beat"):
            self._limit = self._place.stall_timeout
        if kind in ("result", "description"):
            self._outcome = message
        self._raise_error(index, message)
        if kind != "beat" and (index == 0 or kind != "start"):
            try:
                listen(message)
            except Exception as error:  # a listener's own; the workers save what they have before anyone hears of it
                self._objection = self._objection or error
                self._signal(signal.SIGTERM)

    def _raise_error(self, index: int, message: dict[str, Any]) -> None:
        if message["kind"] == "error":
            raise UserError(message["text"])
        if message["kind"] == "crash":
            raise WorkerFailed(index, message["text"], self._logs[index])

    def _check_end(self, index: int) -> None:
        code = self._processes[index].wait()
        if code == 0:
            return
        time.sleep(0.2)  # an error of another worker, which explains this end, may still be on its way
        while not self._messages.empty():
            other, message = self._messages.get()
            if message:
                self._raise_error(other, message)
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise WorkerFailed(index, reason, self._logs[index])

    def _check_progress(self) -> None:
        now = time.monotonic()
        if now - self._progress < self._limit:
            return
        silent = [index for index, heard in enumerate(self._heard) if now - heard > min(SILENT_S, self._limit / 2)]
        index, what = (silent[0], "is stopped or starved") if silent else (0, "makes no progress")
        raise WorkerFailed(index, f"it {what}: nothing for {self._limit:.0f} s", self._logs[index])

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

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
def forwarded_signals(group: Group) -> Iterator[None]:
    """Ctrl-C and SIGTERM interrupt the group instead of this process; from before its start, so that none comes between."""
    if threading.current_thread() is not threading.main_thread():  # a notebook or a service has its own signals
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    old = {number: signal.signal(number, lambda number, _: group.interrupt(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
