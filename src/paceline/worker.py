"""One worker process, and the composition root: here data, model, engine, run folder and actions are put together.

A worker is a fresh process: it reads its job from standard input, sends messages as JSON lines to its parent, and ends when the
parent does. TensorFlow is imported late, because its settings must be made before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline import devices
from paceline.errors import UserError
from paceline.experiment import differences
from paceline.job import Job
from paceline.plan import build_plan
from paceline.plugins import load_function
from paceline.runs import RunFolder, library_versions
from paceline.training import actions, loop
from paceline.training.checkpoint import Checkpoints, State

if TYPE_CHECKING:
    import tensorflow as tf

    from paceline.engines.collective import CollectiveEngine
    from paceline.training.replica import Core

Send = Callable[[dict[str, Any]], None]

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
            send({"kind": "description", "text": describe(job)})
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
    run = RunFolder(job.run.run_dir)
    if job.cluster.is_chief:
        run.lock()
        if (result := _finished(run, job)) and (job.place.on == "local" or job.cluster.num_workers == 1):
            send({"kind": "result", **result, "run_dir": str(run.path), "already": True})
            return
    strategy = devices.build_strategy(job)  # before anything else touches TensorFlow; waits for the others
    core = build(job)
    engine = build_engine(job, core, strategy, stop.is_set)
    _compare_workers(job, core, engine)
    if job.cluster.is_chief:
        _lead(job, core, engine, run, send, stop)
    else:
        _follow(job, core, engine, send, stop)
    engine.gather(np.zeros(1, np.float32))  # nobody leaves before the chief has written everything


def _lead(job: Job, core: Core, engine: CollectiveEngine, run: RunFolder, send: Send, stop: threading.Event) -> None:
    """The chief's part: it alone reads and writes the run folder."""
    # loaded first, so that a mistake in them is told before anything begins
    user_actions = [actions.UserAction(spec, load_function(spec)) for spec in job.run.actions]
    for line in run.open(job.experiment, facts(core)):
        send({"kind": "warning", "text": f"a library changed since this run began, bits may differ: {line}"})
    checkpoints = Checkpoints(
        run.checkpoints,
        core.layout,
        keep=job.run.keep,
        experiment_digest=job.experiment.digest(),
        warn=lambda text: send({"kind": "warning", "text": text}),
    )
    state = share_state(core, engine, _first_state(job, core, checkpoints, run.checkpoints, send))
    run.truncate_metrics(state.step)
    send({"kind": "start", **_numbers(core, state), "line": derived(job, core), "run_dir": str(run.path)})
    speed, board = _Speed(job.experiment.global_batch_size), actions.TensorBoard(run.events, state.step)
    if not state.step:
        board.image_grid("input", example_pictures(core))
    save = actions.SaveCheckpoint(engine.state, checkpoints, core.plan.saves_at, send)
    list_of_actions: list[loop.Action] = [
        actions.StopOnNonFiniteLoss(),
        speed,
        actions.WriteMetrics(run),
        board,
        actions.Report(send),
        save,
        *user_actions,
        *_stops(job, stop),
    ]
    try:
        metrics = _train(core, engine, list_of_actions, state.step)
    except actions.StopRequested as request:
        metrics = dict(request.metrics)
        if request.step > state.step:
            save.save(request.step, metrics)
    except Exception as error:
        with contextlib.suppress(UserError):  # where even this cannot be written, the error itself says why
            run.write_result({"step": engine.state().step, "finished": False, "error": str(error)})
        raise
    finally:
        board.close()
    result = _result(core, engine.state(), metrics, speed.images_per_second())
    run.write_result(result)
    send({"kind": "result", **result, "run_dir": str(run.path)})


def _follow(job: Job, core: Core, engine: CollectiveEngine, send: Send, stop: threading.Event) -> None:
    """Everyone else's part: the same loop, with nothing to write."""
    state = share_state(core, engine, core.initial_state())
    send({"kind": "start", **_numbers(core, state), "line": f"worker {job.cluster.index}: {derived(job, core)}"})

    def beat(step: int, metrics: actions.Metrics) -> None:
        send({"kind": "beat", "step": step})

    try:
        _train(core, engine, [actions.StopOnNonFiniteLoss(), beat, *_stops(job, stop)], state.step)
    except actions.StopRequested as request:
        send({"kind": "beat", "step": request.step})  # the chief saves


def _stops(job: Job, stop: threading.Event) -> list[loop.Action]:
    on_request = actions.StopOnRequest(stop.is_set) if job.cluster.num_workers == 1 else actions.StopOnRequest()
    return [on_request, *([actions.StopAt(job.run.stop_at)] if job.run.stop_at else [])]


def _train(core: Core, engine: CollectiveEngine, list_of_actions: list[loop.Action], first_step: int) -> loop.Metrics:
    if core.plan.stops_at(first_step) and first_step < core.plan.total_steps:
        raise actions.StopRequested(first_step)  # an earlier command got here: stop again, and not a step later
    metrics = loop.train(engine, core.plan, list_of_actions, first_step)
    if "test_accuracy" not in metrics:  # it was stopped between its last step and its result
        metrics |= engine.evaluate(final=True)
    return metrics


def _result(core: Core, state: State, metrics: loop.Metrics, images_per_second: float | None) -> dict[str, Any]:
    return {
        "step": state.step,
        "finished": state.step == core.plan.total_steps,
        "test_accuracy": metrics.get("test_accuracy"),
        "test_loss": metrics.get("test_loss"),
        "images_per_second": images_per_second,
        "state_sha256": state.sha256(),
    }


def _finished(run: RunFolder, job: Job) -> dict[str, Any] | None:
    """The result of a run that has nothing left to do. Needs no TensorFlow, so the answer is quick."""
    result = run.read_result() if run.exists() else None
    same = result and not differences(run.experiment().to_json(), job.experiment.to_json())
    return result if same and result and result["finished"] else None


def _first_state(job: Job, core: Core, checkpoints: Checkpoints, folder: Path, send: Send) -> State:
    """The newest checkpoint, or where the experiment starts."""
    state = checkpoints.latest()
    if state is None and checkpoints.steps():
        raise UserError(f"every checkpoint in {folder} is damaged; remove them to start over, or use another --run-dir")
    if state or not job.experiment.model.init_from:
        return state or core.initial_state()
    from paceline.models.start import start_from

    state, new = start_from(job.experiment.model.init_from, core.template, core.initial_state())
    send({"kind": "warning", "text": f"started from {job.experiment.model.init_from}; new are {', '.join(new) or 'none'}"})
    return state


def share_state(core: Core, engine: CollectiveEngine, own: State) -> State:
    """Everyone goes on from the chief's state."""
    step = int(engine.gather(np.array([own.step], np.int64))[0, 0])
    joined = engine.gather(np.concatenate([own.vectors[name] for name in core.layout.parts]))[0]
    pieces = np.split(joined, np.cumsum([core.layout.sizes()[name] for name in core.layout.parts])[:-1])
    state = State(step, dict(zip(core.layout.parts, pieces, strict=True)))
    engine.load(state)
    return state


def _compare_workers(job: Job, core: Core, engine: CollectiveEngine) -> None:
    """The bits depend on libraries and on the kind of CPU; every worker must have the chief's."""
    if job.cluster.num_workers == 1:
        return
    own = {"experiment": job.experiment.digest(), "data": facts(core), "libraries": library_versions(), "cpu": _cpu()}
    text = json.dumps(own, sort_keys=True).encode()
    lengths = engine.gather(np.array([len(text)], np.int64))[:, 0]
    padded = np.frombuffer(text.ljust(int(lengths.max()), b" "), np.uint8).astype(np.int32)
    everyone = [json.loads(bytes(row.astype(np.uint8))) for row in engine.gather(padded)]
    for index, other in enumerate(everyone):
        if different := differences(everyone[0], other):
            raise UserError(
                f"worker {index} ({job.cluster.addresses[index]}) differs from the chief: {', '.join(different[:4])}; "
                "all workers need the same experiment, data, libraries and kind of CPU"
            )


def _cpu() -> str:
    """The instruction sets by which oneDNN and Eigen choose their kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return " ".join(sorted(flag for flag in flags if flag.startswith(("avx", "fma", "amx", "asimd", "sve", "sse4"))))


class _Speed:
    """An action that measures training alone; the first block is left out, because it compiles."""

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size, self._blocks = global_batch_size, list[tuple[int, float]]()

    def __call__(self, step: int, metrics: actions.Metrics) -> None:
        self._blocks.append((len(metrics["per_step"]["loss"]), self._global_batch_size / metrics["images_per_second"]))

    def images_per_second(self) -> float | None:
        blocks = self._blocks[1:] or self._blocks
        seconds = sum(steps * each for steps, each in blocks)
        return round(sum(steps for steps, _ in blocks) * self._global_batch_size / seconds, 1) if seconds else None


def build(job: Job) -> Core:
    """Data, model and pure functions of a job."""
    from paceline.data import build_source, hold_out
    from paceline.data.batches import image_shape
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
    model = build_model(experiment, image_shape(experiment.data, source), num_classes)
    return build_core(experiment, plan, source, splits, build_template(model), num_classes)


def build_engine(job: Job, core: Core, strategy: tf.distribute.Strategy, wants_stop: Callable[[], bool]) -> CollectiveEngine:
    """Replicas side by side on CPU cores, one after another on a GPU."""
    from paceline.engines.collective import CollectiveEngine

    return CollectiveEngine(core, strategy, devices.side_by_side(job), wants_stop)


def facts(core: Core) -> dict[str, Any]:
    """What a resumed run must find again in its data."""
    sizes = {name: split.size for name, split in core.splits.items()}
    return {"train": core.num_examples, **sizes, "classes": list(core.source.classes)}


def _numbers(core: Core, state: State) -> dict[str, int]:
    return {"total_steps": core.plan.total_steps, "steps_per_epoch": core.plan.steps_per_epoch, "first_step": state.step}


def derived(job: Job, core: Core) -> str:
    """Every derived number in one line."""
    e, sizes, workers = job.experiment, core.layout.sizes(), job.cluster.num_workers
    tests = ", ".join(f"{split.size:,} {name}" for name, split in core.splits.items())
    return (
        f"{core.num_examples:,} train, {tests} examples of {len(core.source.classes)} classes · {sizes['params']:,} parameters · "
        f"{workers} worker{'s' * (workers > 1)} · {e.replicas} replicas x {e.replica_batch_size} = "
        f"global batch {e.global_batch_size} · {e.threads_per_replica} thread{'s' * (e.threads_per_replica > 1)} per replica, "
        f"{devices.side_by_side(job)} side by side · {core.plan.steps_per_epoch:,} steps per epoch, {core.plan.total_steps:,} in all"
    )


def describe(job: Job) -> str:
    """Every derived number and the table of layers, for --dry-run."""
    devices.build_strategy(job)
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


def example_pictures(core: Core, count: int = 25) -> np.ndarray:
    """What the model sees in its first step, stretched to 0 to 255."""
    import tensorflow as tf

    images = core.batch(tf.constant(0, tf.int64), tf.constant(0, tf.int64)).images.numpy()[:count]
    low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
    return ((images - low) / np.maximum(high - low, 1e-6) * 255).astype(np.uint8)


if __name__ == "__main__":
    sys.exit(main())
