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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from paceline.config.job import Job
from paceline.errors import AddressTaken, Ended, UserError
from paceline.places import Listen
from paceline.worker.main import MESSAGES

WAITING_EVERY_S = 10.0
SILENT_S = 10.0
"""A live process says so every second; one that is silent for longer is stopped or starved."""
EXIT_S = 30.0
EXPLAIN_S = 3.0
"""A worker that lost another often tells it before the end of that one is noticed: so long, its own account is not the last word."""
ASKED = 128 + signal.SIGTERM
"""The exit code of workers that saved and ended because one of them got a SIGTERM."""


class WorkerFailed(Ended):
    """A worker ended, or stood still, in a way that nobody foresaw; the text says which one, with its error and its log."""

    def __init__(self, name: str, reason: str, log: Path | None) -> None:
        super().__init__(f"{name} failed: {reason}" + (f"; its log is {log}" if log else ""))
        self.reason = reason


class Interrupted(Ended):
    """A signal ended the run. The first one lets it save; a second one, or one before training began, ends it at once."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


Start = Callable[[Job, Path | None], tuple[Any, int]]
"""Gives a process, or what behaves like one, and the file descriptor that its messages come from."""


class Group:
    """The workers of one attempt. `run` listens to them until all have ended; leaving the `with` block leaves no process behind.

    A worker without a log file writes to this process's standard error. Workers beside parameter servers hold no state: one that is
    lost is started again at its address, and the others go on.
    """

    def __init__(
        self, jobs: Sequence[Job], logs: Sequence[Path | None], start: Start | None = None
    ) -> None:
        self._jobs, self._logs, self._place, self._start = (
            jobs,
            logs,
            jobs[0].place,
            start or start_worker,
        )
        self._processes: list[subprocess.Popen[bytes]] = []
        self._messages: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._heard, self._progress, self._limit = (
            list[float](),
            list[float](),
            self._place.start_timeout,
        )
        self._received, self._started, self._outcome = list[int](), False, dict[str, Any]()
        self._objection: Exception | None = None
        self._spare = [
            len(jobs) > 1 and job.cluster.serves and job.cluster.role == "worker" for job in jobs
        ]
        self._restarts = [0] * len(jobs)
        self.saved = False

    def __enter__(self) -> Group:
        for index in range(len(self._jobs)):
            self._processes.append(self._launch(index))
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

    def _launch(self, index: int) -> subprocess.Popen[bytes]:
        process, reader = self._start(self._jobs[index], self._logs[index])
        threading.Thread(target=self._read, args=(index, reader), daemon=True).start()
        return process

    def interrupt(self, number: int) -> None:
        """A person or a platform wants the run to stop: let it save; asked a second time, or before training began, end it."""
        self._received.append(number)
        self._signal(
            signal.SIGTERM if self._started and len(self._received) == 1 else signal.SIGKILL
        )

    def run(
        self, listen: Listen, while_waiting: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
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
            if not self._started and time.monotonic() - asked > WAITING_EVERY_S:
                while_waiting()
                asked = time.monotonic()
            told = None
            with suppress(queue.Empty):
                told = self._messages.get(timeout=1.0)
            if (
                time.monotonic() - looked > SILENT_S
            ):  # this process was stopped, or its listener slow: no worker is to blame
                self._heard, self._progress = (
                    [time.monotonic()] * len(self._processes) for _ in range(2)
                )
            looked = time.monotonic()
            if told is None:
                self._check_progress()
                continue
            index, message = told
            self._heard[index] = time.monotonic()
            if message is None:
                running -= not self._replaced(index, listen)
                if index == 0 and self._jobs[0].cluster.ps:
                    return  # the chief is done, and nobody needs its servers any more
            elif message["kind"] == "alive":
                if self._jobs[0].cluster.serves:  # alone here, it has nothing else to tell
                    self._progress[index], self._limit = time.monotonic(), self._place.stall_timeout
                self._check_progress()
            else:
                self._take(index, message, listen)

    def _replaced(self, index: int, listen: Listen) -> bool:
        """Whether a process that ended was replaced by a new one."""
        if (
            not self._spare[index]
            or self._outcome
            or self._restarts[index] >= self._place.max_restarts
        ):
            served = self._outcome and self._jobs[index].cluster.serves
            if self._exit_code(index) not in (0, ASKED) and not served:
                raise self._failure(index, None)
            return False
        failure = WorkerFailed(
            self._name(index), _reason(self._processes[index]), self._logs[index]
        )
        self._restarts[index] += 1
        self._processes[index].stdin.close()  # type: ignore[union-attr]
        self._processes[index], self._heard[index] = self._launch(index), time.monotonic()
        listen({"kind": "warning", "text": f"{failure}; starting it again, the others go on"})
        return True

    def _name(self, index: int) -> str:
        return self._jobs[index].cluster.name

    def _take(self, index: int, message: dict[str, Any], listen: Listen) -> None:
        """Every message but a sign of life means progress."""
        self._progress[index], kind = time.monotonic(), message["kind"]
        self._started = self._started or kind == "start"
        if kind == "saved":
            self.saved, self._restarts = True, [0] * len(self._jobs)
        if kind in ("block", "beat"):
            self._limit = self._place.stall_timeout
        if kind == "error" or (kind == "crash" and not self._spare[index]):
            raise self._failure(index, message)
        if kind in ("result", "description") and index == 0:
            self._outcome = message
        if kind not in ("beat", "working", "crash") and (
            index == 0 or kind not in ("start", "result")
        ):
            try:
                listen(message)
            except Exception as error:  # a listener's own; the workers save what they have before anyone hears of it
                self._objection = self._objection or error
                self._signal(signal.SIGTERM)

    def _failure(self, index: int, message: dict[str, Any] | None) -> Exception:
        """What to raise when a worker failed: the first failure that is not the mere loss of another worker."""
        accounts, deadline = {index: message}, time.monotonic() + EXPLAIN_S
        while not (
            causes := [
                each for each, account in accounts.items() if not (account or {}).get("lost")
            ]
        ):
            if time.monotonic() > deadline:
                silent = self._silent(EXPLAIN_S)
                return (
                    self._stopped(silent[0], EXPLAIN_S) if silent else self._account(index, message)
                )
            with suppress(queue.Empty):
                other, message_of_other = self._messages.get(timeout=0.1)
                self._heard[other] = time.monotonic()
                failed = (
                    message_of_other["kind"] in ("error", "crash")
                    if message_of_other
                    else self._exit_code(other)
                )
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
        return WorkerFailed(
            self._name(index),
            message["text"] if message else _reason(self._processes[index]),
            self._logs[index],
        )

    def _check_progress(self) -> None:
        """A worker that is silent counts as lost in every phase; one that does not get on, once training has begun."""
        for index in self._silent(self._place.stall_timeout / 2):
            if self._spare[index]:
                self._processes[index].kill()  # its end is heard of next
        if silent := self._silent(self._place.stall_timeout):
            raise self._stopped(silent[0], self._place.stall_timeout)
        if time.monotonic() - max(self._progress) < self._limit:
            return
        if silent := self._silent(min(SILENT_S, self._limit / 2)):
            raise self._stopped(silent[0], self._limit)
        index = min(
            (i for i, job in enumerate(self._jobs) if not job.cluster.serves),
            key=self._progress.__getitem__,
            default=0,
        )
        reason = f"it makes no progress: nothing for {self._limit:.0f} s"  # the others wait for who got on least
        raise WorkerFailed(self._name(index), reason, self._logs[index])

    def _silent(self, seconds: float) -> list[int]:
        """The workers that still run, but have not said so for so long."""
        now = time.monotonic()
        return [
            i
            for i, heard in enumerate(self._heard)
            if now - heard > seconds and self._processes[i].poll() is None
        ]

    def _stopped(self, index: int, seconds: float) -> WorkerFailed:
        return WorkerFailed(
            self._name(index),
            f"it is stopped or starved: nothing for {seconds:.0f} s",
            self._logs[index],
        )

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


def _reason(process: subprocess.Popen[bytes]) -> str:
    """Why a process ended that did not end well."""
    code = process.wait()
    return (
        f"killed by {signal.Signals(-code).name}"
        if code < 0
        else f"exit code {code}"
        if code
        else ""
    )


def start_worker(
    job: Job,
    log: Path | int | None,
    folder: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[subprocess.Popen[bytes], int]:
    """A worker in a session of its own, so that a Ctrl-C reaches only this process. A file descriptor as log is closed here."""
    reader, writer = os.pipe()
    with nullcontext(sys.stderr) if log is None else open(log, "ab") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.worker"],
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=log_file,
            pass_fds=[writer],
            cwd=folder,
            env={**environment, MESSAGES: str(writer), "PYTHONUNBUFFERED": "1"},
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
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # a notebook or a service has its own signals
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    old = {
        number: signal.signal(number, lambda number, _: group.interrupt(number))
        for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
