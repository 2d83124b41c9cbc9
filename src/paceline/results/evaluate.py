"""`paceline eval`: the metrics of training's own evaluation, bit for bit, and every prediction.

`Evaluation` needs no TensorFlow. `evaluate_run` does; the worker process calls it through `answer`.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json
from paceline.job import Job
from paceline.kernels.library import why_unavailable
from paceline.maths.metrics import num_batches, summarize
from paceline.maths.state import State, evaluated_vectors
from paceline.messages import Progress, Send, Warn
from paceline.requests import EvaluateRequest
from paceline.results.scores import Evaluation
from paceline.results.trained_model import (
    configure_inference,
    output_names,
    to_probabilities,
    usable_experiment,
)
from paceline.run_folder.folder import RunFolder
from paceline.storage.locations import bring_data, is_remote
from paceline.versions import library_versions

if TYPE_CHECKING:
    from paceline.maths.replica import Core


LIKE_TRAINING = EvaluateRequest()


def answer(job: Job, request: EvaluateRequest, send: Send) -> Json:
    """Evaluate in a worker; write each example's label and probabilities to a file if asked."""
    bring_data(request.data_dir or job.experiment.data.dir, send)
    evaluation = evaluate_run(RunFolder(job.run.run_dir), request, send)
    if request.examples:
        np.savez(request.examples, labels=evaluation.labels, probabilities=evaluation.probabilities)
    return evaluation.to_json(request.top_k)


def evaluate_run(
    run: RunFolder, request: EvaluateRequest = LIKE_TRAINING, send: Send = lambda message: None
) -> Evaluation:
    """Evaluate a checkpoint of a run in this process. Without views, the bits are those of
    training's evaluation if TensorFlow was not used here."""
    experiment, split = with_data(run, request.data_dir), request.split
    if run.kernels() == "own" and (reason := why_unavailable()):
        text = "was trained with own kernels, and last digits may differ without them"
        send(Warn(f"{run.path} {text}: {reason}"))
    parallel = configure_inference(experiment)
    from paceline.build import build_core
    from paceline.run_folder.checkpoints import Checkpoints, identity_of

    core = build_core(Job(experiment), request.views)
    if split not in core.splits:
        raise UserError(f"split is {split!r}; this run has {' and '.join(core.splits)}")
    _compare(run, core, split, send)
    checkpoints = Checkpoints(
        run.checkpoints, core.layout, identity=identity_of(run), warn=lambda text: send(Warn(text))
    )
    state = checkpoints.choose(request.checkpoint)
    rows, outputs, labels = _evaluate_batches(core, state, split, parallel, send)
    classes = output_names(core.source.classes, int(outputs.shape[1]))
    probabilities = to_probabilities(outputs, experiment.model.outputs == "logits")
    found = summarize(rows)
    numbers = (found.accuracy, found.top5, found.loss, found.count)
    return Evaluation(str(run.path), state.step, split, *numbers, classes, labels, probabilities)


def with_data(run: RunFolder, data_dir: str) -> Experiment:
    """Return the run's experiment with the data where it is now."""
    experiment = usable_experiment(run)
    data = replace(experiment.data, dir=data_dir or run.data_dir())
    if not (data_dir or data.build or is_remote(data.dir) or os.path.exists(data.dir or ".")):
        raise UserError(
            f"the data of {run.path} was in {data.dir}, which is not there; pass --data.dir with "
            "where it is now"
        )
    return replace(experiment, data=data)


def _evaluate_batches(
    core: Core, state: State, split: str, parallel: int, send: Send
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of all batches in order, and the outputs and labels of all examples.
    `parallel` batches are computed at a time."""
    import tensorflow as tf

    size, batch_size = core.splits[split].size, core.eval_batch_size
    params, stats = (tf.constant(state.vectors[n]) for n in evaluated_vectors(state.vectors))

    def evaluate(number: int) -> list[np.ndarray]:
        batch = core.examine[split](params, stats, tf.constant(number, tf.int64))
        return [tensor.numpy() for tensor in batch]

    parts = [evaluate(0)]  # alone, because TensorFlow compiles the function now
    with ThreadPoolExecutor(parallel) as pool:
        for part in pool.map(evaluate, range(1, num_batches(size, batch_size))):
            parts.append(part)
            send(Progress(min(len(parts) * batch_size, size), size))
    rows, outputs, labels = zip(*parts, strict=True)
    return np.stack(rows), np.concatenate(outputs)[:size], np.concatenate(labels)[:size]


def _compare(run: RunFolder, core: Core, split: str, send: Send) -> None:
    """Refuse data with different classes; warn about a different size or library versions."""

    def short(names: list[str]) -> str:
        return f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''} ({len(names)})"

    facts, classes = run.data_facts(), list(core.source.classes)
    if classes != facts.get("classes", classes):
        raise UserError(
            f"the data has the classes {short(classes)}, but {run.path} was trained with "
            f"{short(facts['classes'])}; pass the --data.dir of the same data set"
        )
    size = core.splits[split].size
    if facts.get(split, size) != size:
        send(Warn(f"the {split} split has {size:,} examples, in training it had {facts[split]:,}"))
    then, now = run.config().get("versions", {}), library_versions()
    if names := [name for name in then if then[name] != now.get(name)]:
        changes = ", ".join(f"{name} {then[name]} -> {now.get(name)}" for name in names)
        send(Warn(f"libraries changed since this run began, last digits may differ: {changes}"))
