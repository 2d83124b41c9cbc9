"""`paceline eval`: the metrics of training's own evaluation, bit for bit, and every prediction.

`Evaluation` needs no TensorFlow. `evaluate_run` does; the worker process calls it through `answer`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.engines import devices
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.views import Views
from paceline.job import Job
from paceline.kernels.choice import usable_kernels
from paceline.kernels.library import why_unavailable
from paceline.maths.evaluation import Examples, num_batches, summarize
from paceline.maths.state import State, evaluated_vectors
from paceline.messages import Progress, Send, Warn
from paceline.requests import EvaluateRequest
from paceline.results.scores import (
    Scores,
    calibration_error,
    class_scores,
    macro_scores,
    top_k_accuracy,
)
from paceline.results.trained_model import output_names, to_probabilities
from paceline.runs.code_copies import with_copies
from paceline.runs.folder import RunFolder
from paceline.storage.locations import bring_data, is_remote
from paceline.versions import library_versions

if TYPE_CHECKING:
    from paceline.maths.replica import Core


NUMBERS = ("run_dir", "step", "split", "accuracy", "top5", "loss", "count")
"""Fields of an Evaluation that are in its JSON as they are."""


@dataclass(frozen=True)
class ClassScore:
    """The metrics of one class."""

    name: str
    count: int
    """Examples of this class."""
    accuracy: float | None
    """Of the examples of this class, the share that are predicted as it; None without examples."""
    precision: float | None
    """Of the examples predicted as this class, the share that are of it; None if none are."""
    recall: float | None
    """The same as the accuracy, under its usual name."""
    f1: float | None
    """The harmonic mean of precision and recall; None if the class is never seen or predicted."""
    mistaken_for: str
    """The most frequent wrong prediction; empty if there is none."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good a checkpoint is on a split.

    `labels`, int32 [n], and `probabilities`, float32 [n, classes], are in the order of the split.
    """

    run_dir: str
    step: int
    split: str
    accuracy: float
    top5: float
    loss: float
    count: int
    classes: tuple[str, ...]
    labels: np.ndarray
    probabilities: np.ndarray

    def confusion(self) -> np.ndarray:
        """Return int64 [classes, classes]: how often each class (row) is predicted as each."""
        labels = self.labels.astype(np.int64)
        examples = Examples(
            labels, self.probabilities.argmax(axis=1), self.probabilities.max(axis=1)
        )
        return examples.confusion(len(self.classes))

    def per_class(self) -> list[ClassScore]:
        """Return the metrics of each class."""
        confusion = self.confusion()
        wrong = confusion - np.diag(confusion.diagonal())
        counts = confusion.sum(axis=1).tolist()
        return [
            ClassScore(
                name=name,
                count=counts[i],
                accuracy=score.recall,
                **score._asdict(),
                mistaken_for=self.classes[wrong[i].argmax()] if wrong[i].any() else "",
            )
            for i, (name, score) in enumerate(zip(self.classes, self._scores(), strict=True))
        ]

    def _scores(self) -> list[Scores]:
        return class_scores(self.confusion())

    def macro(self) -> Scores:
        """Return precision, recall and F1 as means over the classes, each class counted once."""
        return macro_scores(self._scores())

    def calibration_error(self) -> float:
        """Return the expected calibration error of the predictions, in 15 bins."""
        correct = self.probabilities.argmax(axis=1) == self.labels
        return calibration_error(correct, self.probabilities.max(axis=1))

    def top_k(self, k: int) -> float:
        """Return the share of examples whose label is among the k most probable classes."""
        if not 1 <= k <= len(self.classes):
            raise UserError(f"top-k is {k}; it must be 1 to {len(self.classes)}, the classes")
        return top_k_accuracy(self.labels, self.probabilities, k)

    def to_json(self, top_k: Sequence[int] = ()) -> dict[str, Any]:
        """Return everything but the single examples; with the top-k accuracy for each k."""
        values = {name: getattr(self, name) for name in NUMBERS}
        values |= {"calibration_error": self.calibration_error(), "macro": self.macro()._asdict()}
        values |= {"top_k": {str(k): self.top_k(k) for k in top_k}} if top_k else {}
        return values | {"classes": [asdict(score) for score in self.per_class()]}


def _experiment_of(run: RunFolder, data_dir: str, send: Send) -> Experiment:
    """Return the run's experiment with the kernels and the data of this machine."""
    if run.kernels() == "own" and (reason := why_unavailable()):
        text = "was trained with own kernels, and last digits may differ without them"
        send(Warn(f"{run.path} {text}: {reason}"))
    experiment = with_copies(run.experiment(), run.path)
    data = replace(experiment.data, dir=data_dir or run.data_dir())
    if not (data_dir or data.build or is_remote(data.dir) or os.path.exists(data.dir or ".")):
        raise UserError(
            f"the data of {run.path} was in {data.dir}, which is not there; give --data.dir with "
            "where it is now"
        )
    return replace(experiment, kernels=usable_kernels(run.kernels()), data=data)


def evaluate_run(
    run: RunFolder,
    checkpoint: str = "best",
    data_dir: str = "",
    split: str = "test",
    views: Views = "none",
    send: Send = lambda message: None,
) -> Evaluation:
    """Evaluate a checkpoint of a run in this process.

    Without views, the bits are those of training's own evaluation if this process has not used
    TensorFlow before.
    """
    experiment = _experiment_of(run, data_dir, send)
    parallel = devices.configure_inference(experiment)
    from paceline.build import build_core

    core = build_core(Job(experiment), views)
    if split not in core.splits:
        raise UserError(f"split is {split!r}; this run has {' and '.join(core.splits)}")
    _compare(run, core, split, send)
    from paceline.runs.checkpoints import Checkpoints

    checkpoints = Checkpoints(run.checkpoints, core.layout, warn=lambda text: send(Warn(text)))
    state = checkpoints.choose(checkpoint)
    rows, outputs, labels = _evaluate_batches(core, state, split, parallel, send)
    result = summarize(rows)
    return Evaluation(
        run_dir=str(run.path),
        step=state.step,
        split=split,
        accuracy=result.accuracy,
        top5=result.top5,
        loss=result.loss,
        count=result.count,
        classes=output_names(core.source.classes, int(outputs.shape[1])),
        labels=labels,
        probabilities=to_probabilities(outputs, experiment.model.outputs == "logits"),
    )


def answer(job: Job, request: EvaluateRequest, send: Send) -> dict[str, Any]:
    """Evaluate in a worker; write each example's label and probabilities to a file if asked."""
    bring_data(request.data_dir or job.experiment.data.dir, send)
    evaluation = evaluate_run(
        RunFolder(job.run.run_dir),
        request.checkpoint,
        request.data_dir,
        request.split,
        request.views,
        send,
    )
    if request.examples:
        np.savez(request.examples, labels=evaluation.labels, probabilities=evaluation.probabilities)
    return evaluation.to_json(request.top_k)


def _evaluate_batches(
    core: Core, state: State, split: str, parallel: int, send: Send
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of all batches in order, and the outputs and labels of all examples.

    `parallel` batches are computed at a time.
    """
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
    """Refuse data with other classes; warn about another size or other library versions."""
    facts, classes = run.data_facts(), list(core.source.classes)
    if classes != facts.get("classes", classes):
        raise UserError(
            f"the data has the classes {_short(classes)}, but {run.path} was trained with "
            f"{_short(facts['classes'])}; give the --data.dir of the same data set"
        )
    size = core.splits[split].size
    if facts.get(split, size) != size:
        send(Warn(f"the {split} split has {size:,} examples, in training it had {facts[split]:,}"))
    then, now = run.config().get("versions", {}), library_versions()
    names = [name for name in then if then[name] != now.get(name)]
    if names:
        changes = ", ".join(f"{name} {then[name]} -> {now.get(name)}" for name in names)
        send(Warn(f"libraries changed since this run began, last digits may differ: {changes}"))


def _short(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''} ({len(names)})"
