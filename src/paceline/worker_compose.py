"""The composition root: chooses what a worker does for its job, and puts the parts together.

TensorFlow is imported late, because its settings must be made before (`devices`).
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from importlib import import_module

from paceline.engines import devices
from paceline.extras import evaluator
from paceline.job import Job
from paceline.messages import Result, Send
from paceline.requests import RelayRequest, answer
from paceline.runs.survivor import Survivor
from paceline.worker import run_worker


def run_job(
    job: Job, send: Send, stop: threading.Event, survivor: Survivor, at_end: ExitStack
) -> bool:
    """Do the work of a job; return whether a SIGTERM to any of the workers stopped it.

    `at_end` unlocks the run folder when also an error has been dealt with.
    """
    if isinstance(job.request, RelayRequest):
        return import_module("paceline.places.ray").relay(job, send, stop)
    if job.request is not None:
        send(Result(answer(job, send)))
    elif job.cluster.role == "evaluator":
        return evaluator.watch(job, send, stop)
    elif job.cluster.serves:
        devices.import_tensorflow(job)
        import_module("paceline.engines_more.parameter_server.serve").serve(job)
    else:
        outcome = run_worker(job, send, stop, survivor, at_end)
        return outcome is not None and (stop.is_set() or outcome.stop_requested)
    return False
