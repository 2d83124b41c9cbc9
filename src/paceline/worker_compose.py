"""The composition root: chooses what a worker does for its job, and puts the parts together.

TensorFlow is imported late, because its settings must be made before (`devices`).
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from paceline import worker_chief as chief
from paceline import worker_follower as follower
from paceline.engines import devices
from paceline.engines.table import connect
from paceline.extras import evaluator
from paceline.extras.tracking.in_worker import send_late
from paceline.job import Job
from paceline.messages import Result, Send, Working
from paceline.results.in_worker import KINDS, use_run
from paceline.runs.folder import RunFolder
from paceline.storage.data_cache import bring_data
from paceline.worker_memory import Survivor
from paceline.worker_training import Training, find_finished


def run_job(
    job: Job, send: Send, stop: threading.Event, survivor: Survivor, at_end: ExitStack
) -> bool:
    """Do the work of a job; return whether a SIGTERM to any of the workers stopped it.

    `at_end` unlocks the run folder when also an error has been dealt with.
    """
    if job.kind in KINDS or job.dry_run:
        if job.dry_run or job.kind == "evaluate":  # the others need no data
            bring_data(job.request.get("data_dir") or job.experiment.data.dir, send)
        send(Result(_describe(job) if job.dry_run else use_run(job, send)))
    elif job.kind == "relay":
        return import_module("paceline.places.ray").relay(job, send, stop)
    elif job.cluster.role == "evaluator":
        return evaluator.watch(job, send, stop)
    elif job.cluster.serves:
        devices.import_tensorflow(job)
        import_module("paceline.engines_more.parameter_server.serve").serve(job)
    else:
        run = RunFolder(job.run.run_dir)
        at_end.callback(run.unlock)
        return _train(job, run, send, stop, survivor)
    return False


def _train(job: Job, run: RunFolder, send: Send, stop: threading.Event, survivor: Survivor) -> bool:
    """Train together with the other workers of the cluster."""
    if job.cluster.is_chief:
        run.lock(send=send)
        # a platform restarts all tasks, and the others wait for their chief
        awaited = job.place.kind.platform_restarts and len(job.cluster.everyone) > 1
        if not awaited and (finished := find_finished(run, job.experiment, send)):
            send_late(job.run.track, run, run.read_result() or {}, send)
            run.unlock()  # the parent may end this process as soon as it gets the message
            send(finished)
            return False
    bring_data(job.experiment.data.dir, send)
    training = _open_training(job, send, stop)
    survivor.offer(training, run)
    stopped = chief.lead(training, run) if job.cluster.is_chief else follower.follow(training)
    survivor.withdraw()
    training.engine.close()
    return stopped


def _open_training(job: Job, send: Send, stop: threading.Event) -> Training:
    def wants_stop() -> bool:
        """Called by the engine before every block and every turn of an evaluation."""
        send(Working())
        return stop.is_set()

    _ = job.engine  # refuses what does not go together, before seconds of imports
    devices.import_tensorflow(job)  # before the engine's module does
    from paceline.build import build_core
    from paceline.fingerprint import fingerprint

    connection = connect(job, wants_stop)
    core = build_core(job)
    engine = connection.open(core)
    engine.check(fingerprint(job, core))
    return Training(job, core, engine, send, stop)


def _describe(job: Job) -> dict[str, Any]:
    devices.configure(job)
    from paceline.describe import describe

    return describe(job)
