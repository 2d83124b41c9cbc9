"""One worker process, and the composition root: here data, model, engine, run folder and actions are put together.

A worker is a fresh process: it reads its job from standard input, sends messages as JSON lines to its parent, and ends when the
parent does. TensorFlow is imported late, because its settings must be made before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError
from paceline.experiment import differences
from paceline.job import Job
from paceline.plan import Plan, build_plan
from paceline.plugins import load_function
from paceline.runs import RunFolder
from paceline.training import actions, loop
from paceline.training.checkpoint import Checkpoints, State

if TYPE_CHECKING:
    from paceline.training.replica import Core

Send = Callable[[dict[str, Any]], None]

MESSAGES = "PACELINE_MESSAGES"  # environment variable with the file descriptor that messages go to


def main() -> int:
    """The process that `python -m paceline.worker` is: 0 for a clean end, 2 for what a person can put right, 1 for the rest."""
    job = Job.from_json(json.loads(sys.stdin.readline()))
    pipe = os.fdopen(int(os.environ[MESSAGES]), "w", buffering=1)

    def send(message: dict[str, Any]) -> None:
        pipe.write(json.dumps({"worker": job.worker} | message) + "\n")

    threading.Thread(target=_end_with_parent, daemon=True).start()
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the whole terminal; the parent turns it into one SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        if job.dry_run:
            send({"kind": "description", "text": describe(job)})
        else:
            run_worker(job, send, stop)
    except UserError as error:
        traceback.print_exc()  # into the log
        send({"kind": "error", "text": str(error)})
        return 2
    except Exception as error:
        traceback.print_exc()
        send({"kind": "crash", "text": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"})
        return 1
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()  # the parent holds the other end and writes nothing more
    os._exit(1)


def run_worker(job: Job, send: Send, stop: threading.Event) -> None:
    """Train, or go on with, the run of a job."""
    run = RunFolder(job.run.run_dir)
    run.lock()
    if result := _finished(run, job):
        send({"kind": "result", **result, "run_dir": str(run.path), "already": True})
        return
    core = build(job)
    for spec in job.run.actions:
        load_function(spec)  # a mistake is told before anything begins
    for line in run.open(job.experiment, facts(core)):
        send({"kind": "warning", "text": f"a library changed since this run began, bits may differ: {line}"})
    checkpoints = Checkpoints(
        run.checkpoints,
        core.layout,
        keep=job.run.keep,
        experiment_digest=job.experiment.digest(),
        warn=lambda text: send({"kind": "warning", "text": text}),
    )
    state = _first_state(core, checkpoints, run.checkpoints)
    run.truncate_metrics(state.step)
    engine = build_engine(job, core)
    engine.load(state)
    send(
        {"kind": "start", **_numbers(core.plan), "first_step": state.step, "line": derived(job, core), "run_dir": str(run.path)}
    )
    _train(job, core, engine, run, checkpoints, state.step, send, stop)


def _finished(run: RunFolder, job: Job) -> dict[str, Any] | None:
    """The result of a run that has nothing left to do. Needs no TensorFlow, so the answer is quick."""
    result = run.read_result() if run.exists() else None
    same = result and not differences(run.experiment().to_json(), job.experiment.to_json())
    return result if same and result and result["finished"] else None


def _first_state(core: Core, checkpoints: Checkpoints, folder: Path) -> State:
    state = checkpoints.latest()
    if state is None and checkpoints.steps():
        raise UserError(f"every checkpoint in {folder} is damaged; remove them to start over, or use another --run-dir")
    return state or core.initial_state()


def _train(
    job: Job,
    core: Core,
    engine: loop.Engine,
    run: RunFolder,
    checkpoints: Checkpoints,
    first_step: int,
    send: Send,
    stop: threading.Event,
) -> None:
    speed, board = _Speed(job.experiment.global_batch_size), actions.TensorBoard(run.events, first_step)
    if not first_step:
        board.image_grid("input", example_pictures(core))
    save = actions.SaveCheckpoint(engine.state, checkpoints, core.plan.saves_at, send)
    list_of_actions: list[loop.Action] = [
        actions.StopOnNonFiniteLoss(),
        speed,
        actions.WriteMetrics(run),
        board,
        actions.Report(send),
        save,
        *(actions.UserAction(spec, load_function(spec)) for spec in job.run.actions),
        actions.StopOnRequest(stop),
        *([actions.StopAt(job.run.stop_at)] if job.run.stop_at else []),
    ]
    try:
        if core.plan.stops_at(first_step) and first_step < core.plan.total_steps:
            raise actions.StopRequested(first_step)  # an earlier command got here: stop again, and not a step later
        metrics = loop.train(engine, core.plan, list_of_actions, first_step)
        if "test_accuracy" not in metrics:  # it was stopped between its last step and its result
            metrics |= engine.evaluate(final=True)
    except actions.StopRequested as request:
        metrics = dict(request.metrics)
        if request.step > first_step:
            save.save(request.step, metrics)
    finally:
        board.close()
    state = engine.state()
    result = {
        "step": state.step,
        "finished": state.step == core.plan.total_steps,
        "test_accuracy": metrics.get("test_accuracy"),
        "test_loss": metrics.get("test_loss"),
        "images_per_second": speed.images_per_second(),
        "state_sha256": state.sha256(),
    }
    run.write_result(result)
    send({"kind": "result", **result, "run_dir": str(run.path)})


class _Speed:
    """An action that measures training alone; the first block is left out, because it compiles."""

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size, self._blocks = global_batch_size, list[tuple[int, float]]()

    def __call__(self, step: int, metrics: actions.Metrics) -> None:
        self._blocks.append((len(metrics["per_step"]["loss"]), metrics["seconds_per_step"]))

    def images_per_second(self) -> float | None:
        blocks = self._blocks[1:] or self._blocks
        seconds = sum(steps * each for steps, each in blocks)
        return round(sum(steps for steps, _ in blocks) * self._global_batch_size / seconds, 1) if seconds else None


def build(job: Job) -> Core:
    """Data, model and pure functions of a job."""
    configure(job)
    from paceline.data import build_source, hold_out
    from paceline.models import build_model
    from paceline.training.replica import build_core
    from paceline.weights import build_template

    experiment = job.experiment
    source = build_source(experiment.data)
    train, validation = hold_out(source, experiment.data.validation)
    splits = {"train": train, "test": source.test} | ({"validation": validation} if validation else {})
    plan = build_plan(experiment, train.size, job.run.stop_at)
    num_classes = experiment.model.num_classes or len(source.classes)
    if num_classes < len(source.classes):
        raise UserError(
            f"model.num-classes is {num_classes}, but the data has {len(source.classes)} classes; give that or more"
        )
    model = build_model(experiment, source.image_shape, num_classes)
    return build_core(experiment, plan, source, splits, build_template(model), num_classes)


def configure(job: Job) -> None:
    """TensorFlow's settings, made before it touches a device."""
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # off by default on many CPUs, and two to three times faster
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if job.place.devices == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    threads = job.experiment.threads_per_replica
    if threads > 1 and job.experiment.replicas > job.place.workers and not _gpus(job):
        raise UserError(
            f"threads-per-replica is {threads}, but TensorFlow has one pool of threads per process; "
            f"give --workers {job.experiment.replicas} (one replica each) or --threads-per-replica 1"
        )
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, side_by_side(job)))
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    if job.place.devices == "gpu" and not _gpus(job):
        raise UserError("devices is gpu, but TensorFlow sees no GPU; install the extra `gpu`, or give --devices cpu")


def _gpus(job: Job) -> list[str]:
    import tensorflow as tf

    return [] if job.place.devices == "cpu" else [f"/gpu:{i}" for i, _ in enumerate(tf.config.list_physical_devices("GPU"))]


def side_by_side(job: Job) -> int:
    """How many replicas run at a time on CPU cores."""
    cores = len(os.sched_getaffinity(0)) // job.place.workers
    return max(1, min(cores // job.experiment.threads_per_replica, job.experiment.replicas // job.place.workers))


def build_engine(job: Job, core: Core) -> loop.Engine:
    """The engine of one process: replicas side by side on CPU cores, or mirrored over a power of two of GPUs."""
    import tensorflow as tf

    from paceline.engines.collective import CollectiveEngine

    gpus = _gpus(job)
    count = max((n for n in (1, 2, 4, 8, 16, 32, 64) if n <= min(len(gpus), job.experiment.replicas)), default=0)
    if count > 1:
        return CollectiveEngine(core, tf.distribute.MirroredStrategy(gpus[:count]), 1)
    strategy = tf.distribute.OneDeviceStrategy("/gpu:0" if count else "/cpu:0")
    return CollectiveEngine(core, strategy, 1 if count else side_by_side(job))


def facts(core: Core) -> dict[str, Any]:
    """What a resumed run must find again in its data."""
    sizes = {name: split.size for name, split in core.splits.items()}
    return {"train": core.num_examples, **sizes, "classes": list(core.source.classes)}


def _numbers(plan: Plan) -> dict[str, int]:
    return {"total_steps": plan.total_steps, "steps_per_epoch": plan.steps_per_epoch}


def derived(job: Job, core: Core) -> str:
    """Every derived number in one line."""
    e, sizes = job.experiment, core.layout.sizes()
    tests = ", ".join(f"{split.size:,} {name}" for name, split in core.splits.items())
    return (
        f"{core.num_examples:,} train, {tests} examples of {len(core.source.classes)} classes · {sizes['params']:,} parameters · "
        f"{job.place.workers} worker{'s' * (job.place.workers > 1)} · {e.replicas} replicas x {e.replica_batch_size} = "
        f"global batch {e.global_batch_size} · {e.threads_per_replica} thread{'s' * (e.threads_per_replica > 1)} per replica, "
        f"{side_by_side(job)} side by side · {core.plan.steps_per_epoch:,} steps per epoch, {core.plan.total_steps:,} in all"
    )


def describe(job: Job) -> str:
    """Every derived number and the table of layers, for --dry-run."""
    core = build(job)
    rows = [("layer", "kind", "output", "parameters")]
    for layer in core.template.model.layers:
        rows.append((layer.name, type(layer).__name__, _shape(layer), f"{layer.count_params():,}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + f"  {row[3]:>12}" for row in rows]
    return "\n".join([derived(job, core), "", *lines])


def _shape(layer: Any) -> str:
    shape = getattr(getattr(layer, "output", None), "shape", None)
    return " x ".join(str(size) for size in shape[1:]) if shape else ""


def example_pictures(core: Core, count: int = 25) -> Any:
    """What the model sees in its first step, stretched to 0 to 255."""
    import numpy as np
    import tensorflow as tf

    images = core.batch(tf.constant(0, tf.int64), tf.constant(0, tf.int64)).images.numpy()[:count]
    low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
    return ((images - low) / np.maximum(high - low, 1e-6) * 255).astype(np.uint8)


if __name__ == "__main__":
    sys.exit(main())
