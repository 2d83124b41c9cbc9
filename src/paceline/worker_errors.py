"""How a worker reports its error: to its log, and to its parent as one message."""

import sys
import time
import traceback
from importlib import import_module

from paceline.errors import AddressTaken, PassingFault, UserError, first_line
from paceline.job import Job
from paceline.messages import Crash, Error, Send
from paceline.storage.files import to_log

LINGER_S = 60.0
"""How long a worker that lost another one waits for a request of the parent before it exits."""


def report(error: Exception, job: Job, send: Send, trains: bool) -> int:
    """Write an error to the log and send it to the parent; return the exit code. The parent may end
    this process as soon as it gets the message."""
    user_error, lost = _to_user_error(error, job), _lost_another_worker(error)
    # a platform shows its users the log: there, one line is enough
    if not (user_error or lost) or not job.place.kind.platform_restarts:
        to_log("".join(traceback.format_exception(error)).rstrip())
    if user_error:
        address_taken = isinstance(user_error, AddressTaken)
        send(Error(str(user_error), address_taken, isinstance(user_error, PassingFault)))
        return 2
    text = "another worker is gone" if lost else f"{type(error).__name__}: {first_line(error)}"
    send(Crash(text, lost))
    if lost and trains:  # its memory may be asked for
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
