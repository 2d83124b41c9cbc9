"""A group of worker processes: starts them, reads their messages, ends them.

`watchdog` decides who is lost, `restarts` whether all are started again. Imports no TensorFlow.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.errors import AddressTaken, PassingFault, UserError
from paceline.job import Job
from paceline.messages import (
    Advanced,
    Alive,
    Block,
    Crash,
    Error,
    Message,
    Result,
    Saved,
    Send,
    Start,
    Warn,
    Working,
    from_line,
)
from paceline.places.supervise.descendants import end_families
from paceline.places.supervise.failures import Interrupted, WorkerFailed
from paceline.places.supervise.process import (
    Process,
    StartProcess,
    WorkerProcess,
    close_stdin,
    exit_reason,
    start_worker,
)
from paceline.places.supervise.restarts import RestartBudget
from paceline.places.supervise.survivors import keep_newest
from paceline.places.supervise.watchdog import Watchdog, stopped

WAITING_EVERY_S = 10.0
EXIT_S = 30.0
EXPLAIN_S = 3.0
"""Time to find the first cause: a worker that lost another one often reports first."""
ASKED = 128 + signal.SIGTERM
"""The exit code of workers that saved and ended because one of them got a SIGTERM."""


class Group:
    """The workers of one attempt. Leaving the `with` block leaves no process behind.

    A worker without a log file writes to the standard error of this process. Workers of parameter
    servers hold no state: if one is lost, it is started again at its address, and the others
    continue.
    """

    def __init__(
        self, jobs: Sequence[Job], logs: Sequence[Path | None], start: StartProcess | None = None
    ) -> None:
        self._jobs = jobs
        self._logs = logs
        self._start: StartProcess = start or start_worker
        self._processes: list[Process] = []
        self._inbox: queue.Queue[tuple[int, Message | None]] = queue.Queue()
        self._watchdog = Watchdog(jobs[0].place, len(jobs))
        self._budgets = [RestartBudget(job.place.max_restarts) for job in jobs]
        self._signals: list[int] = []
        self._started = False
        self._saved = False
        self._lease = 0
        self._result: Result | None = None
        self._listener_error: Exception | None = None

    def __enter__(self) -> Group:
        for index in range(len(self._jobs)):
            self._processes.append(self._launch(index))
        self._watchdog.reset()
        if self._signals:
            self._signal(signal.SIGKILL)
        return self

    def __exit__(self, *error: object) -> None:
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
            close_stdin(process)
        here = [each for each in self._processes if isinstance(each, WorkerProcess)]
        end_families({each.pid: each.mark for each in here})

    def interrupt(self, number: int) -> None:
        """Let the workers save and end; the second time, or before training began, end them.

        A SIGUSR1 announces a SIGTERM, so that this is the first.
        """
        self._signals.append(number)
        insists = len([each for each in self._signals if each != signal.SIGUSR1]) > 1
        self._signal(signal.SIGTERM if self._started and not insists else signal.SIGKILL)

    def run(self, listen: Send, while_waiting: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Pass messages to `listen` until every worker has ended well; return the chief's result.

        Raises what went wrong first. Calls `while_waiting` every few seconds before training
        begins. If `listen` raises, the workers save and end before its error is raised; after
        StopIteration, the result is returned.
        """
        try:
            self._listen_to_all(listen, while_waiting)
        except (WorkerFailed, PassingFault) as failure:
            if self._signals:
                raise Interrupted(self._signals[0]) from None
            failure.saved, failure.started = self._saved, self._started
            self._keep_memory()
            raise
        except UserError as error:
            error.started = self._started
            raise
        values = self._result.values if self._result else {}
        if isinstance(self._listener_error, StopIteration):
            return values
        if self._listener_error:
            raise self._listener_error
        asked = self._signals or any(process.poll() == ASKED for process in self._processes)
        if asked and not values.get("finished"):
            raise Interrupted(next(iter(self._signals), signal.SIGTERM))
        return values

    def _keep_memory(self) -> None:
        """Let a worker that survived, and is not silent, save its state."""
        silent = self._watchdog.silent(self._running(), EXPLAIN_S)
        workers = {i: self._processes[i] for i in self._running() if i not in silent}
        keep_newest(self._jobs, workers, self._inbox, self._lease)

    def _launch(self, index: int) -> Process:
        process, reader = self._start(self._jobs[index], self._logs[index])
        threading.Thread(target=self._read, args=(index, reader), daemon=True).start()
        return process

    def _read(self, index: int, reader: int) -> None:
        """Put each message into the inbox, and None after the last one."""
        with os.fdopen(reader) as lines:
            for line in lines:
                with suppress(ValueError):  # the last line of a killed process may be incomplete
                    if message := from_line(line):
                        self._inbox.put((index, message))
        self._inbox.put((index, None))

    def _listen_to_all(self, listen: Send, while_waiting: Callable[[], None]) -> None:
        num_running, asked = len(self._processes), time.monotonic()
        while num_running and not (self._result and self._result.already):
            if not self._started and time.monotonic() - asked > WAITING_EVERY_S:
                while_waiting()
                asked = time.monotonic()
            try:
                index, message = self._inbox.get(timeout=1.0)
            except queue.Empty:
                self._watchdog.look()
                self._check_progress()
                continue
            self._watchdog.look()
            self._watchdog.heard(index)
            if message is None:
                num_running -= not self._replaced(index, listen)
                if index == 0 and self._jobs[0].cluster.ps:
                    return  # the chief is done, and its servers are not needed any more
            elif isinstance(message, Alive):
                self._on_alive(index, message)
            else:
                self._on_message(index, message)
                self._pass_on(index, message, listen)

    def _on_alive(self, index: int, message: Alive) -> None:
        self._watchdog.worked(index, message.work)
        if self._jobs[0].cluster.serves:  # alone in its group, it sends nothing else
            self._watchdog.progressed(index)
            self._watchdog.training_began()
        self._check_progress()

    def _on_message(self, index: int, message: Message) -> None:
        self._watchdog.progressed(index)
        match message:
            case Start():
                self._started = True
                self._lease = max(self._lease, message.lease)
            case Block() | Advanced():
                self._watchdog.training_began()
            case Saved():
                self._saved = True
                for budget in self._budgets:
                    budget.refill()
            case Result() if index == 0:
                self._result = message
            case Error():
                raise self._failure(index, message)
            case Crash() if not self._is_replaceable(index):
                raise self._failure(index, message)

    def _pass_on(self, index: int, message: Message, listen: Send) -> None:
        """Call the listener, except for what only this group needs."""
        if isinstance(message, Advanced | Working | Crash) or (
            index > 0 and isinstance(message, Start | Result)
        ):
            return
        try:
            listen(message)
        except Exception as error:  # raised by `run`, after the workers have saved
            self._listener_error = self._listener_error or error
            self._signal(signal.SIGTERM)

    def _is_replaceable(self, index: int) -> bool:
        cluster = self._jobs[index].cluster
        return len(self._jobs) > 1 and cluster.serves and cluster.role == "worker"

    def _replaced(self, index: int, listen: Send) -> bool:
        """Start a process that ended again where that is possible; return whether it was."""
        replaceable = self._is_replaceable(index) and not self._result
        if not replaceable or not self._budgets[index].spend():
            served = self._result and self._jobs[index].cluster.serves
            if self._exit_code(index) not in (0, ASKED) and not served:
                raise self._failure(index, None)
            return False
        failure = self._worker_failed(index, exit_reason(self._processes[index]))
        close_stdin(self._processes[index])
        self._processes[index] = self._launch(index)
        self._watchdog.heard(index)
        listen(Warn(f"{failure}; starting it again, the others continue"))
        return True

    def _failure(self, index: int, report: Message | None) -> Exception:
        """Return what to raise: the first failure that is not only the loss of another worker.

        `report` is the worker's last message, or None if it ended without one.
        """
        alone = len(self._jobs) == 1  # then nobody else here can explain it
        reports, deadline = {index: report}, time.monotonic() + EXPLAIN_S * (not alone)
        while True:
            for worker, each in reports.items():
                if not (isinstance(each, Crash) and each.lost):
                    return self._to_exception(worker, each)
            if time.monotonic() > deadline:
                if silent := self._watchdog.silent(self._running(), EXPLAIN_S):
                    return self._worker_failed(silent[0], stopped(EXPLAIN_S))
                return self._to_exception(index, report)
            with suppress(queue.Empty):
                worker, message = self._inbox.get(timeout=0.1)
                self._watchdog.heard(worker)
                if isinstance(message, Error | Crash) or (
                    message is None and self._exit_code(worker)
                ):
                    reports.setdefault(worker, message)

    def _to_exception(self, index: int, report: Message | None) -> Exception:
        match report:
            case Error():
                if report.passing:
                    return PassingFault(report.text)
                return (AddressTaken if report.address_taken else UserError)(report.text)
            case Crash():
                return self._worker_failed(index, report.text)
        return self._worker_failed(index, exit_reason(self._processes[index]))

    def _worker_failed(self, index: int, reason: str) -> WorkerFailed:
        return WorkerFailed(self._jobs[index].cluster.name, reason, self._logs[index])

    def _check_progress(self) -> None:
        """Raise WorkerFailed for a lost worker; kill a silent one that can be replaced."""
        for index in self._watchdog.nearly_lost(self._running()):
            if self._is_replaceable(index):
                self._processes[index].kill()
        trainers = [i for i, job in enumerate(self._jobs) if not job.cluster.serves]
        if lost := self._watchdog.find_lost(self._running(), trainers):
            raise self._worker_failed(*lost)

    def _running(self) -> list[int]:
        return [i for i, process in enumerate(self._processes) if process.poll() is None]

    def _exit_code(self, index: int) -> int:
        """Return the exit code of a worker that sends nothing more; kill it if it does not end."""
        try:
            return self._processes[index].wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._processes[index].kill()
            return self._processes[index].wait()

    def _signal(self, number: int) -> None:
        for index in self._running():
            self._processes[index].send_signal(number)
