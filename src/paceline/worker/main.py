"""One worker process, and the composition root: here core, engine, run folder and actions are put together.

A worker is a fresh process: it reads its job from standard input, sends messages as JSON lines to its parent, and ends when the
parent does. TensorFlow is imported late, because its settings must be made before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from importlib import import_module
from typing import TYPE_CHECKING

from paceline.config.job import Job
from paceline.data.remote import bring_data
from paceline.engines import engine_module
from paceline.errors import AddressTaken, UserError
from paceline.messages import (
    MESSAGES,
    Advanced,
    Alive,
    Crash,
    Error,
    Message,
    Result,
    Send,
    Working,
    to_line,
)
from paceline.results.in_worker import use_run
from paceline.run_folder.folder import RunFolder
from paceline.worker import actions, build, chief, devices, evaluator

if TYPE_CHECKING:
    from paceline.core.replica import Core
    from paceline.worker.loop import Engine

ALIVE_EVERY_S = 1.0


def main() -> int:
    """The process that `python -m paceline.worker` is: 0 for a clean end, 143 for one that was asked for by a SIGTERM to any of the
    workers, 2 for what a person can put right, 1 for the rest."""
    job = Job.from_json(json.loads(sys.stdin.readline()))
    pipe, lock = os.fdopen(int(os.environ[MESSAGES]), "w", buffering=1), threading.Lock()

    def send(message: Message) -> None:
        with lock:
            pipe.write(to_line(message))

    threading.Thread(target=_end_with_parent, daemon=True).start()
    threading.Thread(target=_tell_alive, args=(send,), daemon=True).start()
    stop = threading.Event()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a Ctrl-C reaches the whole terminal; the parent turns it into one SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        if job.kind != "train":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is nothing to save
            bring_data(job.experiment.data.dir, send)
            send(Result(use_run(job, send)))
        elif job.dry_run:
            bring_data(job.experiment.data.dir, send)
            send(Result({"description": build.describe(job)}))
        elif job.place.on == "ray" and job.engine == "collective" and not job.cluster.addresses:
            import_module("paceline.places.ray").relay(job, send, stop)
        elif run_worker(job, send, stop):
            return 128 + signal.SIGTERM
        if job.cluster.ps:
            os._exit(0)  # threads of TensorFlow may wait for servers that are gone
    except Exception as error:
        known = _known(error)
        if job.place.on != "tf_config" or not known:  # there, the log is what the person reads
            traceback.print_exc()
        if known:
            send(Error(str(known), isinstance(known, AddressTaken)))
            return 2
        text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        send(Crash(text, _lost_another(error)))
        return 1
    return 0


def _known(error: Exception) -> UserError | None:
    """What a person can put right, also where TensorFlow was the one to notice."""
    if isinstance(error, UserError) or "tensorflow" not in sys.modules:
        return error if isinstance(error, UserError) else None
    from paceline.data.sources.tfrecord import explain

    return explain(error)


def _lost_another(error: Exception) -> bool:
    """Whether this is how TensorFlow tells that another worker is gone; the cause is then to be found there."""
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


def _end_with_parent() -> None:
    sys.stdin.read()  # the parent holds the other end and writes nothing more
    os._exit(1)


def _tell_alive(send: Send) -> None:
    """A process that is stopped falls silent; one that waits for others does not."""
    while True:
        send(Alive())
        time.sleep(ALIVE_EVERY_S)


def run_worker(job: Job, send: Send, stop: threading.Event) -> bool:
    """Train, or go on with, the run of a job, together with the other workers of its cluster. True where a SIGTERM ended it."""
    if job.cluster.role == "evaluator":
        return evaluator.watch(job, send, stop)
    if job.cluster.serves:
        devices.import_tensorflow(job)
        import_module("paceline.worker.parameter_server").serve(job)
    run = RunFolder(job.run.run_dir)
    try:
        return _work(job, run, send, stop)
    finally:
        run.unlock()


def _work(job: Job, run: RunFolder, send: Send, stop: threading.Event) -> bool:
    if job.cluster.is_chief:
        run.lock(send=send)
        if (result := chief.finished(run, job)) and (
            job.place.on != "tf_config" or len(job.cluster.everyone) < 2
        ):
            run.unlock()  # whoever hears this may end the process at once
            send(Result(result | {"run_dir": run.where, "already": True}))
            return False
    bring_data(job.experiment.data.dir, send)

    def wants_stop() -> bool:
        """The engine asks before every block and every turn of an evaluation, and shows by it that it gets on."""
        send(Working())
        return stop.is_set()

    devices.import_tensorflow(job)  # before the engine's module does
    core, engine = engine_module(job.engine).open_engine(job, wants_stop)
    stopped = (
        chief.lead(job, core, engine, run, send, stop)
        if job.cluster.is_chief
        else _follow(job, core, engine, send, stop)
    )
    engine.close()
    return stopped


def _follow(job: Job, core: Core, engine: Engine, send: Send, stop: threading.Event) -> bool:
    """Everyone else's part: the same loop, with nothing to write. It ends with the chief's state, and tells its result too."""
    state, speed = engine.load(core.initial_state()), chief.Speed(job.experiment.global_batch_size)
    line = f"worker {job.cluster.index}: {build.derived(job, core)}"
    send(chief.start_message(core, state.step, line))

    def beat(step: int, metrics: actions.Metrics) -> None:
        send(Advanced(step))

    try:
        metrics = chief.train(
            core,
            engine,
            [actions.StopOnNonFiniteLoss(), speed, beat, *chief.stops(job, core.plan, stop)],
            state.step,
        )
    except actions.StopRequested as request:  # the chief saves
        metrics = request.metrics
    outcome = chief.result(core, engine.state(), metrics, speed.images_per_second())
    send(Result(outcome | {"run_dir": job.run.run_dir}))
    return stop.is_set() or bool(metrics.get("stop_requested"))
