"""The process of one worker.

It reads its job from standard input, sends messages to its parent as lines of JSON, and ends when
its parent does. Most jobs are trainings: see `worker`.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from threading import Event

from paceline.engines.devices import import_tensorflow
from paceline.errors import AddressTaken, PassingFault, UserError, first_line
from paceline.job import Job
from paceline.messages import LOST, MESSAGES, Alive, Crash, Done, Error, Message, Send, to_line
from paceline.requests import ANSWERS, UseRun
from paceline.run_folder.survivor import answer
from paceline.storage.files import to_log
from paceline.supervise.process import MARK, end_descendants
from paceline.worker import Memory, run_worker

ALIVE_EVERY_S = 1.0
READ_BYTES_PER_S = 20e6
LINGER_S = 60.0
"""How long a worker that lost another one waits for a request of the parent before it exits."""


def main() -> int:
    """Run the job; return the exit code.

    0 is a normal end, 143 an end because any of the workers got a SIGTERM, 2 an error that a person
    can correct, 1 any other error.
    """
    job = Job.from_json(json.loads(sys.stdin.readline()))
    pipe, lock = os.fdopen(int(os.environ[MESSAGES]), "w", buffering=1), threading.Lock()

    def send(message: Message) -> None:
        with lock:
            pipe.write(to_line(message))

    memory, stop = Memory(), Event()
    threading.Thread(target=_listen_to_parent, args=(send, memory), daemon=True).start()
    threading.Thread(target=_send_alive, args=(send,), daemon=True).start()
    # a Ctrl-C reaches the whole terminal; the parent turns it into one SIGTERM
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # a platform may send it to all processes
    has_nothing_to_save = isinstance(job.request, UseRun)
    signal.signal(signal.SIGTERM, signal.SIG_DFL if has_nothing_to_save else lambda *_: stop.set())
    code = run(job, send, stop, memory)
    if job.cluster.ps and not code:
        os._exit(0)  # threads of TensorFlow may wait for servers that are gone
    return code


def run(job: Job, send: Send, stop: Event, memory: Memory) -> int:
    """Do the work of the job, report an error to the parent, and return the exit code."""
    with ExitStack() as at_end:
        try:
            stopped = _do(job, send, stop, memory, at_end)
        except Exception as error:
            return report(error, job, send, memory)
    return 128 + signal.SIGTERM if stopped else 0


def _do(job: Job, send: Send, stop: Event, memory: Memory, at_end: ExitStack) -> bool:
    """Do what the job asks for; return whether a SIGTERM to any of the workers stopped it."""
    if job.request is not None:
        send(Done(import_module(ANSWERS[job.request.kind]).answer(job, job.request, send)))
        return False
    if job.cluster.role == "evaluator":
        return bool(import_module("paceline.extras.evaluator").watch(job, send, stop))
    if job.cluster.idle and job.cluster.role == "ps":
        import_module("paceline.places.platform_task").wait_for_chief(job)
        return False
    if job.cluster.serves:
        import_tensorflow(job)
        import_module("paceline.engines_more.parameter_server.serve").serve(job)
        return False
    outcome = run_worker(job, send, stop, memory, at_end)
    return outcome is not None and (stop.is_set() or outcome.stop_requested)


def _listen_to_parent(send: Send, memory: Memory) -> None:
    """Answer the requests of the parent, which holds the other end, and end with it."""
    try:
        for line in sys.stdin:  # another worker is lost
            answer(json.loads(line), memory, send)
    finally:
        end_descendants(os.getpid(), os.environ[MARK])
        os._exit(1)


def _send_alive(send: Send) -> None:
    """A process that is stopped sends nothing; one that waits for others does."""
    while True:
        read_bytes = 0
        with suppress(OSError, ValueError, IndexError):
            read_bytes = int(Path("/proc/self/io").read_text().split()[1])
        send(Alive(time.process_time() + read_bytes / READ_BYTES_PER_S, time.monotonic()))
        time.sleep(ALIVE_EVERY_S)


def report(error: Exception, job: Job, send: Send, memory: Memory) -> int:
    """Write an error to the log and send it to the parent; return the exit code.

    The parent may end this process as soon as it gets the message.
    """
    user_error, lost = _to_user_error(error, job), _lost_another_worker(error)
    # a platform shows its users the log: there, one line is enough
    if not (user_error or lost) or not job.place.kind.platform_restarts:
        to_log("".join(traceback.format_exception(error)).rstrip())
    if user_error:
        address_taken = isinstance(user_error, AddressTaken)
        send(Error(str(user_error), address_taken, isinstance(user_error, PassingFault)))
        return 2
    text = LOST if lost else f"{type(error).__name__}: {first_line(error)}"
    send(Crash(text, lost))
    if lost and memory.training:
        time.sleep(LINGER_S)
    return 1


def _to_user_error(error: Exception, job: Job) -> UserError | None:
    """Return the error as one that a person can correct, even if TensorFlow raised it."""
    if isinstance(error, UserError) or "tensorflow" not in sys.modules:
        return error if isinstance(error, UserError) else None
    reading, experiment = import_module("paceline.formats.reading"), job.experiment
    explained: UserError | None = reading.explain(error, experiment.data, experiment.records)
    return explained


def _lost_another_worker(error: Exception) -> bool:
    """Return whether TensorFlow reports that another worker is gone; the cause is there."""
    if "tensorflow" not in sys.modules:
        return False
    from tensorflow import errors

    from paceline.engines.peers import WorkerGone

    # TensorFlow has no type of its own for exceptions of Python in a graph
    in_graph = isinstance(error, errors.UnknownError) and f"{WorkerGone.__name__}: " in str(error)
    lost = (errors.UnavailableError, errors.AbortedError, errors.CancelledError)
    return in_graph or isinstance(error, (WorkerGone, *lost, errors.DeadlineExceededError))


if __name__ == "__main__":
    sys.exit(main())
