"""The process of one worker.

It reads its job from standard input, sends messages to its parent as lines of JSON, and ends when
its parent does. What it does for the job is in `compose`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback

from paceline.config.job import Job
from paceline.errors import AddressTaken, UserError
from paceline.messages import MESSAGES, Alive, Crash, Error, Message, Send, to_line
from paceline.results.in_worker import KINDS
from paceline.worker.compose import run_job

ALIVE_EVERY_S = 1.0


def main() -> int:
    """Run the job; return the exit code.

    0 is a normal end, 143 an end because any of the workers got a SIGTERM, 2 an error that a person
    can correct, 1 any other error.
    """
    job = Job.from_json(json.loads(sys.stdin.readline()))
    send = _open_pipe()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    threading.Thread(target=_send_alive, args=(send,), daemon=True).start()
    stop = threading.Event()
    # a Ctrl-C reaches the whole terminal; the parent turns it into one SIGTERM
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    has_nothing_to_save = job.kind in KINDS
    signal.signal(signal.SIGTERM, signal.SIG_DFL if has_nothing_to_save else lambda *_: stop.set())
    try:
        if run_job(job, send, stop):
            return 128 + signal.SIGTERM
    except Exception as error:
        return _report(error, job, send)
    if job.cluster.ps:
        os._exit(0)  # threads of TensorFlow may wait for servers that are gone
    return 0


def _open_pipe() -> Send:
    pipe, lock = os.fdopen(int(os.environ[MESSAGES]), "w", buffering=1), threading.Lock()

    def send(message: Message) -> None:
        with lock:
            pipe.write(to_line(message))

    return send


def _end_with_parent() -> None:
    sys.stdin.read()  # the parent holds the other end and writes nothing more
    os._exit(1)


def _send_alive(send: Send) -> None:
    """A process that is stopped sends nothing; one that waits for others does."""
    while True:
        send(Alive())
        time.sleep(ALIVE_EVERY_S)


def _report(error: Exception, job: Job, send: Send) -> int:
    """Send an error to the parent; return the exit code."""
    user_error = _to_user_error(error)
    # a platform shows its users the log: there, one line is enough
    if not user_error or not job.place.kind.platform_restarts:
        traceback.print_exc()
    if user_error:
        send(Error(str(user_error), isinstance(user_error, AddressTaken)))
        return 2
    first_line = (str(error).strip().splitlines() or [""])[0]
    send(Crash(f"{type(error).__name__}: {first_line}", _lost_another_worker(error)))
    return 1


def _to_user_error(error: Exception) -> UserError | None:
    """Return the error as one that a person can correct, also if TensorFlow raised it."""
    if isinstance(error, UserError) or "tensorflow" not in sys.modules:
        return error if isinstance(error, UserError) else None
    from paceline.data.sources.tfrecord import explain

    return explain(error)


def _lost_another_worker(error: Exception) -> bool:
    """Return whether TensorFlow reports that another worker is gone; the cause is there."""
    if "tensorflow" not in sys.modules:
        return False
    from tensorflow import errors

    return isinstance(
        error,
        errors.UnavailableError
        | errors.AbortedError
        | errors.CancelledError
        | errors.DeadlineExceededError,
    )
