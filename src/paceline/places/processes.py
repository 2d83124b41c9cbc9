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
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from paceline.errors import AddressTaken, UserError
from paceline.job import Job
from paceline.places import Listen
from paceline.worker import MESSAGES

WAITING_EVERY_S = 10.0
SILENT_S = 10.0
"""A live process says so every second; one that is silent for longer is stopped or starved."""
EXIT_S = 30.0
EXPLAIN_S = 3.0
"""A worker that lost another often tells it before the end of that one is noticed: so long, its own account is not the last word."""
ASKED = 128 + signal.SIGTERM
"""The exit code of workers that saved and ended because one of them got a SIGTERM."""


class WorkerFailed(Exception):
    """A worker ended, or stood still, in a way that nobody foresaw; the text says which one, with its error and its log."""

    def __init__(self, worker: int, reason: str, log: Path | None) -> None:
        super().__init__(f"worker {worker} failed: {reason}" + (f"; its log is {log}" if log else ""))
        self.worker, self.reason = worker, reason


class Interrupted(Exception):
    """A signal ended the run. The first one lets it save; a second one, or one before training began, ends it at once."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Group:
    """The workers of one attempt. `run` listens to them until all have ended; leaving the `with` block leaves no process behind.

    A worker without a log file writes to this process's standard error.
    """

    def __init__(self, jobs: Sequence[Job], logs: Sequence[Path | None]) -> None:
        self._jobs, self._logs, self._place = jobs, logs, jobs[0].place
        self._processes: list[subprocess.Popen[bytes]] = []
        self._messages: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._heard, self._progress, self._limit = list[float](), list[float](), self._place.start_timeout
        self._received, self._started, self._outcome = list[int](), False, dict[str, Any]()
        self._objection: Exception | None = None
        self.saved = False

    def __enter__(self) -> Group:
        for index, (job, log) in enumerate(zip(self._jobs, self._logs, strict=True)):
            process, reader = _start(job, log)
            self._processes.append(process)
            threading.Thread(target=self._read, args=(index, reader), daemon=True).start()
        self._heard, self._progress = ([time.monotonic()] * len(self._processes) for _ in range(2))
        if self._received:
            self._signal(signal.SIGKILL)
        return self

    def __exit__(self, *error: object) -> None:
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
            assert process.stdin
            process.stdin.close()

    def interrupt(self, number: int) -> None:
        """A person or a platform wants the run to stop: let it save; asked a second time, or before training began, end it."""
        self._received.append(number)
        self._signal(signal.SIGTERM if self._started and len(self._received) == 1 else signal.SIGKILL)

    def run(self, listen: Listen, while_waiting: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Pass on what workers tell until every one has ended well; raise what went wrong first. `while_waiting` is called now and
        then before they have met."""
        try:
            self._listen_to_all(listen, while_waiting)
        except WorkerFailed:
            if self._received:
                raise Interrupted(self._received[0]) from None
            raise
        if isinstance(self._objection, StopIteration):
            return self._outcome
        if self._objection:
            raise self._objection
        asked = any(process.returncode == ASKED for process in self._processes)
        if (self._received or asked) and not self._outcome.get("finished"):
            raise Interrupted(next(iter(self._received), signal.SIGTERM))
        return self._outcome

    def _listen_to_all(self, listen: Listen, while_waiting: Callable[[], None]) -> None:
        running, asked, looked = len(self._processes), time.monotonic(), time.monotonic()
        while running and not self._outcome.get("already"):
            if time.monotonic() - looked > SILENT_S:  # this process was stopped, or its listener slow: no worker is to blame
                self._heard, self._progress = ([time.monotonic()] * len(self._processes) for _ in range(2))
            looked = time.monotonic()
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
                if self._exit_code(index) not in (0, ASKED):
                    raise self._failure(index, None)
            elif message["kind"] == "alive":
                self._check_progress()
            else:
                self._take(index, message, listen)

    def _take(self, index: int, message: dict[str, Any], listen: Listen) -> None:
        """Every message but a sign of life means progress."""
        self._progress[index], kind = time.monotonic(), message["kind"]
        self._started = self._started or kind == "start"
        self.saved = self.saved or kind == "saved"
        if kind in ("block", "beat"):
            self._limit = self._place.stall_timeout
        if kind in ("error", "crash"):
            raise self._failure(index, message)
        if kind in ("result", "description") and index == 0:
            self._outcome = message
        if kind not in ("beat", "working") and (index == 0 or kind not in ("start", "result")):
            try:
                listen(message)
            except Exception as error:  # a listener's own; the workers save what they have before anyone hears of it
                self._objection = self._objection or error
                self._signal(signal.SIGTERM)

    def _failure(self, index: int, message: dict[str, Any] | None) -> Exception:
        """What to raise when a worker failed: the first failure that is not the mere loss of another worker."""
        accounts, deadline = {index: message}, time.monotonic() + EXPLAIN_S
        while not (causes := [each for each, account in accounts.items() if not (account or {}).get("lost")]):
            if time.monotonic() > deadline:
                silent = self._silent(EXPLAIN_S)
                return self._stopped(silent[0], EXPLAIN_S) if silent else self._account(index, message)
            with suppress(queue.Empty):
                other, message_of_other = self._messages.get(timeout=0.1)
                self._heard[other] = time.monotonic()
                failed = message_of_other["kind"] in ("error", "crash") if message_of_other else self._exit_code(other)
                if failed:
                    accounts.setdefault(other, message_of_other)
        return self._account(causes[0], accounts[causes[0]])

    def _exit_code(self, index: int) -> int:
        """Of a worker that has said its last word; one that does not come to its end is helped."""
        try:
            return self._processes[index].wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._processes[index].kill()
            return self._processes[index].wait()

    def _account(self, index: int, message: dict[str, Any] | None) -> Exception:
        if message and message["kind"] == "error":
            return (AddressTaken if message.get("address_taken") else UserError)(message["text"])
        code = self._processes[index].returncode
        reason = message["text"] if message else f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return WorkerFailed(index, reason, self._logs[index])

    def _check_progress(self) -> None:
        """A worker that is silent counts as lost in every phase; one that does not get on, once training has begun."""
        if silent := self._silent(self._place.stall_timeout):
            raise self._stopped(silent[0], self._place.stall_timeout)
        if time.monotonic() - max(self._progress) < self._limit:
            return
        if silent := self._silent(min(SILENT_S, self._limit / 2)):
            raise self._stopped(silent[0], self._limit)
        index = self._progress.index(min(self._progress))  # the others wait for who got on least
        raise WorkerFailed(index, f"it makes no progress: nothing for {self._limit:.0f} s", self._logs[index])

    def _silent(self, seconds: float) -> list[int]:
        """The workers that still run, but have not said so for so long."""
        now = time.monotonic()
        return [i for i, heard in enumerate(self._heard) if now - heard > seconds and self._processes[i].poll() is None]

    def _stopped(self, index: int, seconds: float) -> WorkerFailed:
        return WorkerFailed(index, f"it is stopped or starved: nothing for {seconds:.0f} s", self._logs[index])

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _read(self, index: int, reader: int) -> None:
        with os.fdopen(reader) as lines:
            for line in lines:
                with suppress(ValueError):  # the last words of a killed process may be cut short
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
