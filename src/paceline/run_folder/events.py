"""TensorBoard's event files: scalars, images, histograms, the model graph, settings, profiles.

The chief writes them, without TensorFlow; only the profile needs it. They change no bit of the run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import flatten
from paceline.job import Job
from paceline.maths.metrics import BlockResult, EvalResult, Examples
from paceline.maths.state import State, StateLayout
from paceline.run_folder.drawing import Image, draw_confusion, draw_grid, png
from paceline.storage.files import explained

if TYPE_CHECKING:
    from paceline.chief import ChiefRun
    from paceline.loop import Action

DRAWN_CLASSES = 40
"""Confusion matrices of more classes are too large to read; the report has the top mistakes."""


class TensorBoard:
    """An action that writes event files. It makes no file before the first call.

    Training starts or continues at `first_step`: earlier events after it are hidden, because their
    steps are computed again. `number` is that of the file; by default it is the next one.
    """

    def __init__(
        self,
        events_dir: str | Path,
        first_step: int = 0,
        classes: Sequence[str] = (),
        number: int = 0,
    ) -> None:
        self._folder = Path(events_dir)
        self._number = number
        self._first_step = first_step
        self._classes = classes
        self._writer: Any = None

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        whole = {"images_per_second": block.images_per_second, "epoch": block.epoch, **block.more}
        numbers = [*block.each_step(), (block.step, whole)]
        self._write(*(_scalars(step, values) for step, values in numbers))
        if evaluation:
            self.evaluation(block.step, evaluation)

    def evaluation(self, step: int, evaluation: EvalResult) -> None:
        """Show what an evaluation measured."""
        self._write(_scalars(step, evaluation.scalars()))
        for split, result in evaluation.splits.items():
            self._confusion(split, result.examples, step)

    def image_grid(self, tag: str, images: Image, step: int | None = None) -> None:
        """Show images, uint8 [n, height, width, channels], as one."""
        self.image(tag, draw_grid(images), self._first_step if step is None else step)

    def image(self, tag: str, image: Image, step: int) -> None:
        """Show one image."""
        height, width, channels = image.shape
        content = {"height": height, "width": width, "colorspace": channels}
        content["encoded_image_string"] = png(image)
        self._write(_event(step, {"tag": tag, "image": content}))

    def histograms(self, state: State, layout: StateLayout) -> None:
        """Show the distribution of the weights of each variable."""
        weights = {
            name: state.vectors[vector][place]
            for vector, name, place, _ in layout.pieces()
            if vector == "params"
        }
        values = ({"tag": name, "histo": _histogram(v)} for name, v in weights.items() if v.size)
        self._write(_event(state.step, *values))

    def graph(self, model: Any) -> None:
        """Show the layers of a Keras model and their connections, if the model has a graph."""
        from tensorboard.compat.proto.graph_pb2 import GraphDef

        if nodes := _graph_nodes(model):
            graph = GraphDef(node=nodes).SerializeToString()
            self._write({"step": self._first_step, "graph_def": graph})

    def hyper_parameters(self, experiment: Experiment) -> None:
        """Write every field of the experiment, for the table that compares runs."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in flatten(experiment.to_json()).items()
        }
        self._write({"step": self._first_step, "summary": hparams_pb(plain)})

    def close(self) -> None:
        """Close the event file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with explained("write", self._folder):
                writer.close()

    def _confusion(self, split: str, examples: Examples, step: int) -> None:
        if 0 < len(self._classes) <= DRAWN_CLASSES:
            size = max(len(self._classes), int(examples.predictions.max()) + 1)
            image = draw_confusion(examples.confusion(size), self._classes)
            self.image(f"confusion/{split}", image, step)

    def _write(self, *events: dict[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        with explained("write", self._folder):
            if self._writer is None:
                self._writer = self._open()
                events = (*self._first_events(), *events)
            for fields in events:
                self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
            self._writer.flush()

    def _open(self) -> Any:
        # tensorboard's own EventFileWriter opens its file with TensorFlow.
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names. They have numbers, because the
        # clocks of two hosts may disagree which file is the later one. The chief's is the number of
        # its lease, so that two chiefs never write the same file.
        names = (path.name for path in self._folder.glob("events.out.tfevents.*"))
        found = (re.fullmatch(r"events\.out\.tfevents\.(\d+)", name) for name in names)
        last = max((int(match[1]) for match in found if match), default=0)
        number = max(self._number, last + 1)
        return RecordWriter(open(self._folder / f"events.out.tfevents.{number:010d}", "xb"))

    def _first_events(self) -> list[dict[str, Any]]:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        # START also hides the events of its own step. Those of `first_step` stay visible; at
        # step 0 there are none.
        hidden_from = self._first_step + 1 if self._first_step else 0
        start = SessionLog(status=SessionLog.START)
        return [{"file_version": "brain.Event:2"}, {"step": hidden_from, "session_log": start}]


class HistogramsAtSaves:
    """An action: writes the distribution of all weights whenever they are saved."""

    def __init__(
        self,
        board: TensorBoard,
        get_state: Callable[[], State],
        layout: StateLayout,
        saves_at: Callable[[int], bool],
    ) -> None:
        self._board = board
        self._get_state = get_state
        self._layout = layout
        self._saves_at = saves_at

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        if self._saves_at(block.step):
            self._board.histograms(self._get_state(), self._layout)


class Profile:
    """An action that records TensorFlow's operations in steps `first` to `last`.

    The plan ends blocks at both.
    """

    def __init__(self, events_dir: Path, first: int, last: int, step: int) -> None:
        self._folder = events_dir
        self._first = first
        self._last = last
        self._on = False
        self._record(step)

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        self._record(block.step)

    def _record(self, step: int) -> None:
        import tensorflow as tf

        if step >= self._last:
            self.close()
        elif step >= self._first and not self._on:
            tf.profiler.experimental.start(str(self._folder))
            self._on = True

    def close(self) -> None:
        """Write the profile, if one is being recorded."""
        import tensorflow as tf

        if self._on:
            self._on = False
            with explained("write", self._folder):
                tf.profiler.experimental.stop()


def load_histograms(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Return the function that builds the action of `--histograms`."""
    return lambda chief: [
        HistogramsAtSaves(
            chief.board, chief.engine.state, chief.core.layout, chief.core.plan.saves_at
        )
    ]


def load_profile(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Return the function that builds the action of `--profile`."""
    first, last = job.run.profiled or (0, 0)
    return lambda chief: [Profile(chief.folder.events, first, last, chief.first_step)]


def _event(step: int, *values: dict[str, Any]) -> dict[str, Any]:
    return {"step": step, "summary": {"value": list(values)}}


def _scalars(step: int, values: dict[str, float]) -> dict[str, Any]:
    items = ({"tag": name, "simple_value": float(value)} for name, value in values.items())
    return _event(step, *items)


def _histogram(values: npt.NDArray[np.float32]) -> dict[str, Any]:
    exact = values.astype(np.float64)
    counts, edges = np.histogram(exact, bins=30)
    return {
        "min": exact.min(),
        "max": exact.max(),
        "num": exact.size,
        "sum": exact.sum(),
        "sum_squares": (exact**2).sum(),
        "bucket_limit": edges[1:],
        "bucket": counts,
    }


def _graph_nodes(model: Any) -> list[dict[str, Any]]:
    """Return one node for each call of a layer. The names of our models make groups of stages."""
    from paceline.models.keras_graph import calls_of

    calls = calls_of(model)
    names: dict[int, str] = {}
    for call in calls:
        own = call.operation.name
        groups = re.match(r"(stage\d+)_(block\d+)_|(stem|head)_", own)
        end = groups.end() if groups else 0
        name = own[:end].replace("_", "/") + own[end:]
        names[id(call)] = name if name not in names.values() else f"{name}_{len(names)}"
    return [
        {
            "name": names[id(call)],
            "op": type(call.operation).__name__,
            "input": [names[id(parent)] for parent in call.parent_nodes if id(parent) in names],
            "attr": {"_output_shapes": {"list": {"shape": [_shape(o) for o in call.outputs]}}},
        }
        for call in calls
    ]


def _shape(output: Any) -> dict[str, Any]:
    return {"dim": [{"size": -1 if size is None else size} for size in output.shape]}
