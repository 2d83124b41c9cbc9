"""Evaluate a run's checkpoint: the numbers of its training's own evaluation, bit for bit, and what the model said of each example.

`Evaluation` needs no TensorFlow; `evaluate_run` does, and is what the worker process of `paceline eval` calls.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline import messages
from paceline.config.job import Job
from paceline.core.evaluation import num_batches, summarise
from paceline.errors import UserError
from paceline.messages import Send, Warn
from paceline.results.predictor import evaluated, output_names, to_probabilities
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.versions import library_versions
from paceline.worker import build, devices

if TYPE_CHECKING:
    from paceline.core.replica import Core
    from paceline.core.state import State

Progress = Callable[[int, int], None]
"""Is told how many examples are done, and of how many."""


@dataclass(frozen=True)
class ClassScore:
    """One class: how many examples it has, which share of them was found (accuracy), which share of what was called so is so
    (precision, None where nothing was), and the class that it is most often taken for."""

    name: str
    count: int
    accuracy: float | None
    precision: float | None
    mistaken_for: str


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good a checkpoint is on a split. `labels` int32 [n] and `probabilities` float32 [n, classes] are in the split's order."""

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
        """int64 [classes, classes]: how often each class (row) was taken for each class (column)."""
        size = len(self.classes)
        pairs = self.labels.astype(np.int64) * size + self.probabilities.argmax(axis=1)
        return np.bincount(pairs, minlength=size * size).reshape(size, size)

    def per_class(self) -> list[ClassScore]:
        confusion = self.confusion()
        found, named = confusion.sum(axis=1), confusion.sum(axis=0)
        scores = []
        for i, name in enumerate(self.classes):
            right, wrong = (
                int(confusion[i, i]),
                np.where(np.arange(len(self.classes)) == i, 0, confusion[i]),
            )
            scores.append(
                ClassScore(
                    name,
                    int(found[i]),
                    right / int(found[i]) if found[i] else None,
                    right / int(named[i]) if named[i] else None,
                    self.classes[int(wrong.argmax())] if wrong.any() else "",
                )
            )
        return scores

    def to_json(self) -> dict[str, Any]:
        """Everything but the single examples."""
        names = ("run_dir", "step", "split", "accuracy", "top5", "loss", "count")
        return {name: getattr(self, name) for name in names} | {
            "classes": [asdict(score) for score in self.per_class()]
        }


def evaluate_run(
    run: RunFolder,
    checkpoint: str = "best",
    data_dir: str = "",
    split: str = "test",
    send: Send = lambda message: None,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Evaluate in this process, which must not have used TensorFlow before if the bits of the training's own evaluation matter."""
    experiment = run.experiment()
    if data_dir:
        experiment = replace(experiment, data=replace(experiment.data, dir=data_dir))
    lanes = devices.configure_inference(experiment)
    core = build.build_core_for(Job(experiment))
    if split not in core.splits:
        raise UserError(f"split is {split!r}; this run has {' and '.join(core.splits)}")
    _compare_data(run, core, split, send)
    from paceline.run_folder.checkpoint import Checkpoints

    state = Checkpoints(run.checkpoints, core.layout, warn=lambda text: send(Warn(text))).choose(
        checkpoint
    )
    rows, outputs, labels = _examine(core, state, split, lanes, progress)
    metrics, names = (
        summarise(split, rows),
        output_names(core.source.classes, int(outputs.shape[1])),
    )
    return Evaluation(
        run_dir=str(run.path),
        step=state.step,
        split=split,
        accuracy=metrics[f"{split}_accuracy"],
        top5=metrics[f"{split}_top5"],
        loss=metrics[f"{split}_loss"],
        count=int(metrics[f"{split}_count"]),
        classes=names,
        labels=labels,
        probabilities=to_probabilities(outputs, experiment.model.outputs == "logits"),
    )


def serve(job: Job, send: Send) -> dict[str, Any]:
    """A worker's part of `eval`; what was said of each example goes into the file `examples`, where one is asked for."""
    request = dict(job.request)
    examples, run = request.pop("examples"), RunFolder(job.run.run_dir)

    def progress(done: int, total: int) -> None:
        send(messages.Progress(done, total))

    evaluation = evaluate_run(run, **request, send=send, progress=progress)
    if examples:
        np.savez(examples, labels=evaluation.labels, probabilities=evaluation.probabilities)
    return evaluation.to_json()


def _examine(
    core: Core, state: State, split: str, lanes: int, progress: Progress
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of sums by batch, in order; outputs and labels by example. Batches are computed side by side."""
    import tensorflow as tf

    size, batch_size, examine = (
        core.splits[split].size,
        core.eval_batch_size,
        core.examine_batch[split],
    )
    params, stats = tf.constant(evaluated(state)), tf.constant(state.vectors["stats"])

    def one(number: int) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in examine(params, stats, tf.constant(number, tf.int64))]

    parts = [one(0)]  # alone, because it is compiled
    with ThreadPoolExecutor(lanes) as pool:
        for part in pool.map(one, range(1, num_batches(size, batch_size))):
            parts.append(part)
            progress(min(len(parts) * batch_size, size), size)
    rows, outputs, labels = zip(*parts, strict=True)
    return np.stack(rows), np.concatenate(outputs)[:size], np.concatenate(labels)[:size]


def _compare_data(run: RunFolder, core: Core, split: str, send: Send) -> None:
    """Other classes are a mistake; another number of pictures is a person's choice, but told; so are other libraries."""
    facts, classes = run.data_facts(), list(core.source.classes)
    if classes != facts.get("classes", classes):
        raise UserError(
            f"the data has the classes {_short(classes)}, but {run.path} was trained with {_short(facts['classes'])}; "
            "give the --data.dir of the same data set"
        )
    size = core.splits[split].size
    if facts.get(split, size) != size:
        send(Warn(f"the {split} split has {size:,} examples, in training it had {facts[split]:,}"))
    then, now = run.config().get("versions", {}), library_versions()
    changed = [
        f"{name} {then[name]} -> {now.get(name)}" for name in then if then[name] != now.get(name)
    ]
    if changed:
        text = (
            f"libraries changed since this run began, last digits may differ: {', '.join(changed)}"
        )
        send(Warn(text))


def _short(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''} ({len(names)})"
