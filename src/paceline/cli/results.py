"""What uses a trained run: `paceline eval`, `predict` and `export`, in a worker process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from paceline.cli.parse import RunName
from paceline.cli.tables import print_table, shown
from paceline.errors import UserError, printable, public
from paceline.experiment.data import Views
from paceline.experiment.fields import Json
from paceline.messages import Message, Predictions, Progress, Send, Warn
from paceline.requests import EvaluateRequest, ExportRequest, PredictRequest, Quantize

if TYPE_CHECKING:
    from paceline.results.predict import Prediction


MOST_CLASSES = 1000
"""A table with one row for each of 100,000 classes takes minutes."""


@dataclass(frozen=True)
class DataFlags:
    dir: str = ""
    """Current folder of the data. Default: the folder that training used."""


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    run: RunName
    """Folder of the run, or its name in runs/: shapes-6d2c1f04, shapes, or last for the newest."""
    checkpoint: str = "best"
    """Checkpoint to use: best (on the validation split; without one, the last), last or a step."""
    trust_code: bool = False
    """Run the run's own Python code (model.build, data.build). Use only for runs you trust."""


@dataclass(frozen=True, kw_only=True)
class ViewFlags(RunFlags):
    views: Views = "none"
    """Test-time augmentation: none, mirror (add a flip) or shifts (flips and one-pixel shifts)."""


@dataclass(frozen=True, kw_only=True)
class Eval(ViewFlags):
    """Evaluate a checkpoint of a run on all test images: paceline eval RUN

    It prints accuracy, top-5 accuracy and loss, with the same bits as the evaluation during
    training; then the expected calibration error, and precision, recall and F1 of each class and
    their means over the classes (macro).

    Example: paceline eval runs/shapes-6d2c1f04 --checkpoint last --json
    """

    data: DataFlags = field(default_factory=DataFlags)
    split: Literal["test", "validation"] = "test"
    """Split to evaluate on."""
    top_k: tuple[int, ...] = ()
    """Also report top-k accuracy for these k, such as 2 3."""
    json: bool = False
    """Print one line of JSON instead of tables."""

    def __call__(self) -> int:
        from paceline.results.in_worker import in_a_worker
        from paceline.run_folder.finding import existing_run

        request = EvaluateRequest(
            self.checkpoint, self.data.dir, self.split, self.views, self.top_k
        )
        with listening("evaluating") as listen:
            found = in_a_worker(existing_run(self.run), request, listen, self.trust_code)
        if self.json:
            print(json.dumps(found))
            return 0
        count = f"{found['count']:,} {found['split']} images"
        views = "" if self.views == "none" else f", views {self.views}"
        print(printable(f"{found['run_dir']}, step {found['step']:,}, {count}{views}"))
        tops = [f"top-{k} {share:.4f}" for k, share in found.get("top_k", {}).items()]
        tops = [f"accuracy {found['accuracy']:.4f}", f"top-5 {found['top5']:.4f}", *tops]
        error = f"calibration error {found['calibration_error']:.4f}"
        print("  ".join([*tops, f"loss {found['loss']:.4f}", error]))
        _print_classes(found)
        return 0


def _print_classes(found: Json) -> None:
    headings = ("class", "images", "precision", "recall", "F1", "most often predicted instead<")
    macro = found["macro"] | {"name": "macro", "count": found["count"], "mistaken_for": ""}
    if len(classes := found["classes"]) > MOST_CLASSES:
        print(f"the {MOST_CLASSES:,} classes with the lowest F1; --json has all {len(classes):,}")
        classes = sorted(classes, key=lambda row: (row["f1"] is None, row["f1"]))[:MOST_CLASSES]
    rows = (
        (
            row["name"],
            f"{row['count']:,}",
            *(shown(row[name], ".4f") for name in ("precision", "recall", "f1")),
            row["mistaken_for"],
        )
        for row in [*classes, macro]
    )
    print_table(headings, rows)


@dataclass(frozen=True, kw_only=True)
class Predict(ViewFlags):
    """Predict the classes of images: paceline predict RUN IMAGE|FOLDER|GLOB ...

    Images can have any size and any common format. They are preprocessed as in evaluation. A file
    that is not an image is reported and skipped, and the exit code is then 1. Instead of RUN, you
    can pass an exported ONNX file, which is faster and does not need TensorFlow.

    Example: paceline predict runs/cifar10-fast-1a2b3c4d cat.jpg photos/ 'more/*.png' --json
    """

    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """Files, folders (searched with all their subfolders) and globs."""
    top: int = 5
    """Number of classes to print for each image, the most probable first."""
    json: bool = False
    """Print a line of JSON for each image."""

    def __call__(self) -> int:
        from paceline.results.in_worker import in_a_worker
        from paceline.results.predict import Prediction, find_files
        from paceline.run_folder.finding import existing_run

        if self.top < 1:
            raise UserError(f"top is {self.top}; it must be 1 or more")
        if not self.images:
            raise UserError("IMAGE is missing; give files, folders or globs such as 'photos/*.jpg'")
        files = find_files(self.images)
        if self.run.endswith(".onnx"):
            return self._predict_onnx(files)
        run = existing_run(self.run)
        with listening("predicting") as listen:

            def show_and_listen(message: Message) -> None:
                for each in message.predictions if isinstance(message, Predictions) else ():
                    self._show(Prediction.from_json(each))
                sys.stdout.flush()
                listen(message)

            request = PredictRequest(tuple(files), self.checkpoint, self.top, self.views)
            found = in_a_worker(run, request, show_and_listen, self.trust_code)
        return 1 if found["faults"] else 0

    def _predict_onnx(self, files: list[str]) -> int:
        from paceline.results.onnx_predict import predict_onnx

        if (self.checkpoint, self.views) != ("best", "none"):
            raise UserError(f"{self.run} contains one checkpoint; pass no --checkpoint or --views")
        faults = 0
        for each in predict_onnx(self.run, files, self.top):
            self._show(each)
            faults += bool(each.error)
        return 1 if faults else 0

    def _show(self, prediction: Prediction) -> None:
        if self.json:
            top = [{"class": name, "probability": share} for name, share in prediction.top]
            print(json.dumps(asdict(prediction) | {"top": top}))
        elif not prediction.error:
            classes = "  ".join(f"{name} {share:.4f}" for name, share in prediction.top)
            print(printable(f"{prediction.file}  {classes}"))
        if prediction.error:
            text = f"skipped {prediction.file}: it {prediction.error}"
            print(f"paceline: {printable(text)}", file=sys.stderr)


@contextmanager
def listening(what: str) -> Iterator[Send]:
    """Yield a listener that shows a worker's warnings and, after two seconds, its progress."""
    from paceline.storage.progress_bar import late_bar

    done = 0
    with ExitStack() as stack:
        advance: Callable[[float], None] | None = None

        def listen(message: Message) -> None:
            nonlocal advance, done
            if isinstance(message, Warn):
                print(f"note: {public(message.text)}", file=sys.stderr)
            if isinstance(message, Progress):
                advance = advance or stack.enter_context(late_bar(what, message.total))
                advance(message.done - done)
                done = message.done

        yield listen


@dataclass(frozen=True, kw_only=True)
class Export(RunFlags):
    """Export the model of a run, with its class names: paceline export RUN OUT

    keras, savedmodel, onnx and tflite do not need Paceline, and return probabilities. A SavedModel
    takes the bytes of JPEG, PNG, GIF, BMP or WebP files, onnx takes 8-bit images of any size, and
    keras and tflite take pixels. safetensors contains only weights. All describe preprocessing.

    Example: paceline export runs/shapes-6d2c1f04 model.onnx
    """

    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """File to write, or folder for a SavedModel."""
    to: Literal["", "keras", "savedmodel", "onnx", "tflite", "safetensors"] = ""
    """Format to write. Default: the format of OUT's extension, or savedmodel without one."""
    force: bool = False
    """Replace OUT if it exists."""
    quantize: Quantize = ""
    """int8 (only tflite): 8-bit weights and activations, calibrated with 200 training images."""
    data: DataFlags = field(default_factory=DataFlags)

    def __call__(self) -> int:
        from paceline.results.export import run_export

        request = ExportRequest(self.out, self.to, self.checkpoint, self.quantize, self.data.dir)
        with listening("exporting") as listen:
            done = run_export(self.run, request, self.force, self.trust_code, listen)
        print(f"wrote {printable(done['out'])} (step {done['step']:,}): {done['what']}")
        return 0
