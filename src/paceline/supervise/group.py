"""A group of workers: starts them, reads and passes on their messages, ends them.

`watchdog` finds who is lost, `diagnosis` the first cause, and `recovery` saves the state of those
that survive. Imports no TensorFlow.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.errors import Interrupted, PassingFault, UserError, WorkerFailed
from paceline.experiment.fields import Json
from paceline.messages import (
    Alive,
    Block,
    Crash,
    Done,
    Error,
    Message,
    Saved,
    Send,
    Start,
    Warn,
    Working,
)
from paceline.supervise.diagnosis import EXPLAIN_S, first_cause, worker_failed
from paceline.supervise.interface import Inbox, Worker
from paceline.supervise.watchdog import Watchdog

ASKED = 128 + signal.SIGTERM
"""The exit code of workers that saved and exited because one of them got a SIGTERM."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT, signal.SIGHUP)
"""Slurm can send SIGUSR1 some time before a job's time limit. A closed terminal sends SIGHUP."""
FIRST = (signal.SIGUSR1, signal.SIGHUP)
"""Signals that never insist."""
FROM_THE_CHIEF = (Start, Block, Done)
"""Messages that a listener needs only from the chief."""


class WorkerGroup:
    """The workers of one attempt. Leaving the `with` block leaves no process behind.

    In the `with` block, signals of the command are for the group. In a thread, as in a notebook or
    a service, the program handles its own signals.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self._inbox: Inbox = queue.Queue()
        self._watchdog = Watchdog(workers[0].job.place, len(workers))
        self._signals: list[int] = []
        self._handlers: dict[int, Any] = {}
        self._started = False
        self._saved = False
        self._lease = 0
        self._result: Done | None = None
        self._give_restarts()

    def __enter__(self) -> WorkerGroup:
        if threading.current_thread() is threading.main_thread():
            is_detached = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # by nohup
            for number in SIGNALS[: -1 if is_detached else None]:
                self._handlers[number] = signal.signal(number, lambda got, _: self.interrupt(got))
        try:
            for index in range(len(self.workers)):
                self._start(index)
        except BaseException:
            self.__exit__()
            raise
        self._watchdog.reset()
        if self._signals:
            self._send_all(signal.SIGKILL)
        return self

    def __exit__(self, *error: object) -> None:
        self._send_all(signal.SIGKILL)
        for worker in self.workers:
            worker.end()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def interrupt(self, number: int) -> None:
        """Let the workers save and exit; the second time, or before training began, kill them.

        A SIGUSR1 announces a SIGTERM. A closed terminal and its shell each send a SIGHUP.
        """
        self._signals.append(number)
        insists = len([each for each in self._signals if each not in FIRST]) > 1
        self._send_all(signal.SIGTERM if self._started and not insists else signal.SIGKILL)

    def run(self, listen: Send) -> Json:
        """Pass messages to `listen` until every worker has ended well; return the chief's result.

        Raises the first cause of a failure. If `listen` raises, the workers save and exit before
        its error is raised, whatever they report. StopIteration is not raised: the result so far is
        returned.
        """
        error: Exception | None = None
        failure: UserError | WorkerFailed | None = None
        try:
            for message in self._messages():
                try:
                    listen(message)
                except Exception as raised:
                    error = error or raised
                    self._send_all(signal.SIGTERM)
        except (UserError, WorkerFailed) as raised:
            failure = raised
        if error and not isinstance(error, StopIteration):
            raise error from failure
        if failure:
            failure.started, failure.saved = self._started, self._saved
            if isinstance(failure, WorkerFailed | PassingFault):
                self._keep_memory()
            raise failure
        result = self._result.values if self._result else {}
        was_asked = self._signals or any(worker.poll() == ASKED for worker in self.workers)
        if was_asked and not (error or result.get("finished")):
            raise Interrupted(next(iter(self._signals), signal.SIGTERM))
        return result

    def _keep_memory(self) -> None:
        """Let a surviving worker save the state in its memory, unless a person ends the run."""
        from paceline.supervise.recovery import keep_newest

        if self._signals:
            raise Interrupted(self._signals[0]) from None
        keep_newest(self.workers, self._watchdog.silent(EXPLAIN_S), self._inbox, self._lease)

    def _start(self, index: int) -> None:
        self.workers[index].start()
        threading.Thread(target=self._read, args=(index,), daemon=True).start()

    def _read(self, index: int) -> None:
        """Put each message into the inbox, and None after the last one."""
        for message in self.workers[index].messages():
            self._inbox.put((index, message))
        self._inbox.put((index, None))

    def _messages(self) -> Iterator[Message]:
        """Yield the messages for a listener until every worker has ended well."""
        num_running = len(self.workers)
        while num_running and not (self._result and self._result.already):
            self._watchdog.look()
            if self._inbox.empty():  # else a worker that looks silent may be heard next
                self._check_progress()
            try:
                index, message = self._inbox.get(timeout=1.0)
            except queue.Empty:
                continue
            self._watchdog.heard(index)
            if message is None:
                if warning := self._on_end(index):
                    yield warning
                else:
                    num_running -= 1
                if index == 0 and self.workers[0].job.cluster.ps:
                    return  # the chief is done, and its servers are not needed any more
            elif self._note(index, message):
                yield message

    def _note(self, index: int, message: Message) -> bool:
        """Note what a message means for the group; return whether it is for a listener."""
        if isinstance(message, Alive):
            self._watchdog.worked(index, message.work, message.clock)
            if self.workers[0].job.cluster.serves:  # alone in its group, it sends nothing else
                self._watchdog.progressed(index)
                self._watchdog.began = True
            return False
        self._watchdog.progressed(index)
        match message:
            case Start():
                self._started = True
                self._lease = max(self._lease, message.lease)
            case Block():
                self._watchdog.began = True
            case Saved():
                self._saved = True
                self._give_restarts()
            case Done() if index == 0:
                self._result = message
            case Crash() if self._can_replace(index):
                pass
            case Error() | Crash():
                raise first_cause(self.workers, self._inbox, self._watchdog, index, message)
        is_doubled = index > 0 and isinstance(message, FROM_THE_CHIEF)
        return not isinstance(message, Working | Crash) and not is_doubled

    def _on_end(self, index: int) -> Warn | None:
        """Start a worker that ended again if it can be replaced, and return a warning; otherwise
        raise the first cause if it did not end well."""
        worker = self.workers[index]
        self._watchdog.ended(index)
        if self._can_replace(index) and not self._result and self._restarts[index]:
            self._restarts[index] -= 1
            failure = worker_failed(worker)
            self._start(index)
            self._watchdog.heard(index)
            return Warn(f"{failure}; starting it again, the others continue")
        has_served = self._result and worker.job.cluster.serves
        if worker.wait() not in (0, ASKED) and not has_served:
            raise first_cause(self.workers, self._inbox, self._watchdog, index, None)
        return None

    def _can_replace(self, index: int) -> bool:
        """Return whether the others continue without a worker: beside parameter servers they do."""
        cluster = self.workers[index].job.cluster
        return len(self.workers) > 1 and cluster.serves and cluster.role == "worker"

    def _give_restarts(self) -> None:
        """Give each worker that can be replaced all of its restarts, again at each checkpoint."""
        self._restarts = [worker.job.place.max_restarts for worker in self.workers]

    def _check_progress(self) -> None:
        """Raise WorkerFailed for a lost worker; kill a silent one that can be replaced earlier."""
        for index in self._watchdog.silent(self.workers[0].job.place.stall_timeout / 2):
            if self._can_replace(index):
                self.workers[index].send_signal(signal.SIGKILL)
        trainers = [i for i, each in enumerate(self.workers) if not each.job.cluster.serves]
        if lost := self._watchdog.find_lost(trainers):
            index, reason = lost
            raise worker_failed(self.workers[index], reason)

    def _send_all(self, number: int) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(number)
