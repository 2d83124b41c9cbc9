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
from typing import TYPE_CHECKING, Any

from paceline import assemble, chief, devices
from paceline.chief import Send
from paceline.errors import UserError
from paceline.job import Job
from paceline.runs import RunFolder
from paceline.training import actions

if TYPE_CHECKING:
    from paceline.training.loop import Engine
    from paceline.training.replica import Core

MESSAGES = "PACELINE_MESSAGES"  # environment variable with the file descriptor that messages go to
ALIVE_EVERY_S = 1.0


def main() -> int:
    """The process that `python -m paceline.worker` is: 0 for a clean end, 2 for what a person can put right, 1 for the rest."""
    job = Job.from_json(json.loads(sys.stdin.readline()))
    pipe, lock = os.fdopen(int(os.environ[MESSAGES]), "w", buffering=1), threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with lock:
            pipe.write(json.dumps(message) + "\n")

    threading.Thread(target=_end_with_parent, daemon=True).start()
    threading.Thread(target=_tell_alive, args=(send,), daemon=True).start()
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the whole terminal; the parent turns it into one SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        if job.dry_run:
            send({"kind": "description", "text": assemble.describe(job)})
        else:
            run_worker(job, send, stop)
    except Exception as error:
        traceback.print_exc()  # into the log
        if known := _known(error):
            send({"kind": "error", "text": str(known)})
            return 2
        send({"kind": "crash", "text": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"})
        return 1
    return 0


def _known(error: Exception) -> UserError | None:
    """What a person can put right, also where TensorFlow was the one to notice."""
    if isinstance(error, UserError) or "tensorflow" not in sys.modules:
        return error if isinstance(error, UserError) else None
    from paceline.data.tfrecord import explain

    return explain(error)


def _end_with_parent() -> None:
    sys.stdin.read()  # the parent holds the other end and writes nothing more
    os._exit(1)


def _tell_alive(send: Send) -> None:
    """A process that is stopped falls silent; one that waits for others does not."""
    while True:
        send({"kind": "alive"})
        time.sleep(ALIVE_EVERY_S)


def run_worker(job: Job, send: Send, stop: threading.Event) -> None:
    """Train, or go on with, the run of a job, together with the other workers of its cluster."""
    if job.cluster.serves:
        devices.set_environment(job)
        import_module("paceline.serving").serve(job)
        return
    run = RunFolder(job.run.run_dir)
    if job.cluster.is_chief:
        run.lock()
        if (result := chief.finished(run, job)) and (job.place.on != "tf_config" or len(job.cluster.everyone) < 2):
            send({"kind": "result", **result, "run_dir": str(run.path), "already": True})
            return
    devices.set_environment(job)  # before the engine's module imports TensorFlow
    core, engine = import_module(f"paceline.engines.{job.engine}").open_engine(job, stop.is_set)
    if job.cluster.is_chief:
        chief.lead(job, core, engine, run, send, stop)
    else:
        _follow(job, core, engine, send, stop)
    engine.close()


def _follow(job: Job, core: Core, engine: Engine, send: Send, stop: threading.Event) -> None:
    """Everyone else's part: the same loop, with nothing to write."""
    state = engine.load(core.initial_state())
    send({"kind": "start", **chief.numbers(core, state), "line": f"worker {job.cluster.index}: {assemble.derived(job, core)}"})

    def beat(step: int, metrics: actions.Metrics) -> None:
        send({"kind": "beat", "step": step})

    try:
        chief.train(core, engine, [actions.StopOnNonFiniteLoss(), beat, *chief.stops(job, stop)], state.step)
    except actions.StopRequested as request:
        send({"kind": "beat", "step": request.step})  # the chief saves


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # threads of TensorFlow may wait for processes that are gone
