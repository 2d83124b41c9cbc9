"""What TensorBoard shows of a run: scalars, pictures, confusion matrices, histograms, the model graph, hyper-parameters, profiles.

All event files are written here, by the chief, without TensorFlow; only the profile needs it. None of it changes a bit of the run.
"""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config.dataclass_json import flatten
from paceline.config.experiment import Experiment
from paceline.core.evaluation import EXAMPLES
from paceline.core.metrics import Metrics, measures, steps_of_block
from paceline.core.state import State, StateLayout
from paceline.run_folder.files import explained

DRAWN_CLASSES = 40
"""Confusion matrices of more classes would be too large to read; the report has their most frequent mistakes."""


class TensorBoard:
    """An action that writes event files. No file before the first call.

    `first_step` is where training starts or goes on: events beyond it, of steps that are computed again, are hidden.
    """

    def __init__(
        self, events_dir: str | Path, first_step: int = 0, classes: Sequence[str] = ()
    ) -> None:
        self._folder, self._first_step, self._classes = Path(events_dir), first_step, classes
        self._writer: Any = None

    def __call__(self, step: int, metrics: Metrics) -> None:
        single = steps_of_block(step, metrics)
        shown = ["images_per_second", "epoch", "staleness_mean", "staleness_max"]
        shown += [] if single else ["loss", "accuracy", "learning_rate"]
        whole = {name: metrics[name] for name in shown if name in metrics} | measures(metrics)
        blocks = [(at, [_scalar(*item) for item in values.items()]) for at, values in single]
        self._write(*blocks, (step, [_scalar(*item) for item in whole.items()]))
        for name in metrics:
            if name.endswith(EXAMPLES) and 0 < len(self._classes) <= DRAWN_CLASSES:
                matrix = metrics[name].confusion(
                    max(len(self._classes), int(metrics[name].predictions.max()) + 1)
                )
                self.picture(
                    f"confusion/{name.removesuffix(EXAMPLES)}",
                    confusion_picture(matrix, self._classes),
                    step,
                )

    def picture_grid(self, tag: str, pictures: np.ndarray, step: int | None = None) -> None:
        """Show pictures, uint8 [n, height, width, channels], as one."""
        self.picture(tag, picture_grid(pictures), self._first_step if step is None else step)

    def picture(self, tag: str, picture: np.ndarray, step: int) -> None:
        height, width, channels = picture.shape
        image = {
            "height": height,
            "width": width,
            "colorspace": channels,
            "encoded_image_string": png(picture),
        }
        self._write((step, [{"tag": tag, "image": image}]))

    def histograms(self, state: State, layout: StateLayout) -> None:
        """How the weights of each variable are spread."""
        pieces = [
            (name, state.vectors[vector][place])
            for vector, name, place, _ in layout.pieces()
            if vector == "params"
        ]
        self._write(
            (
                state.step,
                [
                    {"tag": name, "histo": _histogram(values)}
                    for name, values in pieces
                    if values.size
                ],
            )
        )

    def graph(self, model: Any) -> None:
        """The layers of a Keras model and how they are connected; nothing of a model that does not know."""
        from tensorboard.compat.proto.graph_pb2 import GraphDef

        if nodes := _graph_nodes(model):
            self._write_events(
                {"step": self._first_step, "graph_def": GraphDef(node=nodes).SerializeToString()}
            )

    def hyper_parameters(self, experiment: Experiment) -> None:
        """Every field of the experiment, for the table that compares runs."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        values = flatten(experiment.to_json())
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in values.items()
        }
        self._write_events({"step": self._first_step, "summary": hparams_pb(plain)})

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with explained("write", self._folder):
                writer.close()

    def _write(self, *steps: tuple[int, list[dict[str, Any]]]) -> None:
        self._write_events(
            *({"step": step, "summary": {"value": values}} for step, values in steps)
        )

    def _write_events(self, *events: dict[str, Any]) -> None:
        with explained("write", self._folder):
            if self._writer is None:
                self._writer = self._open()
            for fields in events:
                self._add(**fields)
            self._writer.flush()

    def _add(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as EventProto

        self._writer.write(EventProto(wall_time=time.time(), **fields).SerializeToString())

    def _open(self) -> Any:
        # tensorboard's own EventFileWriter opens its file with TensorFlow.
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        # Read in the order of names. Numbers, because the clocks of two hosts may not agree which file is the later one.
        numbers = [
            int(path.suffix[1:])
            for path in self._folder.glob("events.out.tfevents.*")
            if path.suffix[1:].isdigit()
        ]
        path = self._folder / f"events.out.tfevents.{max(numbers, default=0) + 1:010d}"
        self._writer = RecordWriter(open(path, "xb"))  # noqa: SIM115
        self._add(file_version="brain.Event:2")
        # START hides the events of its own step too. Those of `first_step` stay; of step 0 there is nothing to keep.
        hidden_from = self._first_step + 1 if self._first_step else 0
        self._add(step=hidden_from, session_log=SessionLog(status=SessionLog.START))
        return self._writer


class HistogramsAtSaves:
    """An action: how the weights of each layer are spread, whenever they are saved."""

    def __init__(
        self,
        board: TensorBoard,
        get_state: Callable[[], State],
        layout: StateLayout,
        saves_at: Callable[[int], bool],
    ) -> None:
        self._board, self._get_state, self._layout, self._saves_at = (
            board,
            get_state,
            layout,
            saves_at,
        )

    def __call__(self, step: int, metrics: Metrics) -> None:
        if self._saves_at(step):
            self._board.histograms(self._get_state(), self._layout)


class Profile:
    """An action that records what TensorFlow does in the steps from `first` to `last`; the plan ends blocks at both."""

    def __init__(self, events_dir: Path, first: int, last: int, step: int) -> None:
        self._folder, self._first, self._last, self._on = events_dir, first, last, False
        self(step, {})

    def __call__(self, step: int, metrics: Metrics) -> None:
        import tensorflow as tf

        if step >= self._last:
            self.close()
        elif step >= self._first and not self._on:
            tf.profiler.experimental.start(str(self._folder))
            self._on = True

    def close(self) -> None:
        import tensorflow as tf

        if self._on:
            self._on = False
            with explained("write", self._folder):
                tf.profiler.experimental.stop()


def picture_grid(pictures: np.ndarray, gap: int = 2) -> np.ndarray:
    """Pictures in rows of a nearly square white sheet."""
    count, height, width, channels = pictures.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    grid = np.full(
        (rows * (height + gap) - gap, columns * (width + gap) - gap, channels), 255, dtype=np.uint8
    )
    for i, picture in enumerate(pictures):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        grid[top : top + height, left : left + width] = picture
    return grid


def confusion_picture(matrix: np.ndarray, classes: Sequence[str], cell: int = 34) -> np.ndarray:
    """Rows are what pictures show, columns what the model said: darker the larger the share of the row, with the counts."""
    from PIL import Image, ImageDraw, ImageFont

    size = len(matrix)
    names = [*classes, *(str(index) for index in range(len(classes), size))]
    font = ImageFont.load_default(12)
    margin = 8 + math.ceil(max(font.getlength(name[:20]) for name in names))
    sheet = Image.new("RGB", (margin + size * cell, margin + size * cell), "white")
    draw = ImageDraw.Draw(sheet)
    for row, counts in enumerate(matrix):
        for column, share in enumerate(counts / max(1, counts.sum())):
            box = [
                margin + column * cell,
                margin + row * cell,
                margin + (column + 1) * cell - 1,
                margin + (row + 1) * cell - 1,
            ]
            full = (
                (20, 70, 140) if row == column else (190, 60, 0)
            )  # right or wrong; errors are few, so they are drawn stronger
            shade = share if row == column else min(1.0, 4 * share)
            draw.rectangle(box, tuple(round(255 + shade * (tone - 255)) for tone in full), "#ddd")
            if counts[column]:
                ink = "white" if shade > 0.5 else "black"
                draw.text(
                    (box[0] + cell / 2, box[1] + cell / 2), str(counts[column]), ink, font, "mm"
                )
    for index, name in enumerate(names):
        draw.text((margin - 4, margin + (index + 0.5) * cell), name[:20], "black", font, "rm")
        heading = Image.new("RGB", (margin - 4, cell), "white")
        ImageDraw.Draw(heading).text((0, cell / 2), name[:20], "black", font, "lm")
        sheet.paste(heading.rotate(90, expand=True), (margin + index * cell, 0))
    return np.asarray(sheet)


def png(picture: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture[:, :, 0] if picture.shape[2] == 1 else picture).save(buffer, "PNG")
    return buffer.getvalue()


def _scalar(name: str, value: float) -> dict[str, Any]:
    return {"tag": name, "simple_value": float(value)}


def _histogram(values: np.ndarray) -> dict[str, Any]:
    exact = values.astype(np.float64)
    counts, edges = np.histogram(exact, bins=30)
    sums = {"num": exact.size, "sum": exact.sum(), "sum_squares": (exact**2).sum()}
    return {
        "min": exact.min(),
        "max": exact.max(),
        **sums,
        "bucket_limit": edges[1:],
        "bucket": counts,
    }


def _graph_nodes(model: Any) -> list[dict[str, Any]]:
    """One node for each call of a layer; stages and blocks of our own models, which their names tell, become groups."""
    by_depth = getattr(getattr(model, "_functional", model), "_nodes_by_depth", None) or {}
    calls = [call for depth in sorted(by_depth, reverse=True) for call in by_depth[depth]]
    names: dict[int, str] = {}
    for call in calls:
        name = re.sub(
            r"^(stage\d+)_(block\d+)_|^(stem|head)_",
            lambda match: match[0].replace("_", "/"),
            call.operation.name,
        )
        names[id(call)] = name if name not in names.values() else f"{name}_{len(names)}"
    return [
        {
            "name": names[id(call)],
            "op": type(call.operation).__name__,
            "input": [names[id(parent)] for parent in call.parent_nodes if id(parent) in names],
            "attr": {
                "_output_shapes": {"list": {"shape": [_shape(output) for output in call.outputs]}}
            },
        }
        for call in calls
    ]


def _shape(output: Any) -> dict[str, Any]:
    return {"dim": [{"size": -1 if size is None else size} for size in output.shape]}
