"""What people do with a run: `paceline eval`, `predict` and `export`. A worker process does the work."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from paceline.errors import UserError
from paceline.messages import Message, Predictions, Progress, Send, Warn

if TYPE_CHECKING:
    from rich.table import Table

    from paceline.results.predict import Prediction

_RunName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class DataFlags:
    dir: str = ""
    """Where the data lie now; empty is where the training found them."""


@dataclass(frozen=True)
class Eval:
    """Evaluate a checkpoint of a run on all test pictures: accuracy, top-5 and loss with the bits of the training's own evaluation, and
    each class.

    Example: paceline eval runs/shapes-6d2c1f04 --checkpoint last --json"""

    run: _RunName
    """Folder of the run, or its name in runs/."""
    data: DataFlags = field(default_factory=DataFlags)
    checkpoint: str = "best"
    """best, last or a step. The best is chosen on the validation split; without one it is the last."""
    split: Literal["test", "validation"] = "test"
    """What is evaluated."""
    json: bool = False
    """Print one line of JSON instead of tables."""


def evaluate(arguments: list[str]) -> int:
    """Evaluate a run: accuracy, loss and each class: paceline eval RUN"""
    from paceline.cli.commands import parse
    from paceline.results.in_worker import in_a_worker
    from paceline.run_folder.folder import existing_run

    flags = parse(Eval, "paceline eval", arguments, Eval(tyro.MISSING))
    request = {
        "checkpoint": flags.checkpoint,
        "data_dir": flags.data.dir,
        "split": flags.split,
        "examples": "",
    }
    with _listening("evaluating") as listen:
        found = in_a_worker("evaluate", existing_run(flags.run), request, listen)
    if flags.json:
        print(json.dumps(found))
        return 0
    from rich.console import Console

    print(
        f"{found['run_dir']}, step {found['step']:,}, {found['count']:,} {found['split']} pictures"
    )
    print(f"accuracy {found['accuracy']:.4f}  top-5 {found['top5']:.4f}  loss {found['loss']:.4f}")
    Console().print(_class_table(found["classes"]))
    return 0


def _class_table(scores: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("class", "pictures", "accuracy", "precision"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    table.add_column("most often taken for")
    for score in scores:
        shares = (
            "-" if score[name] is None else f"{score[name]:.4f}"
            for name in ("accuracy", "precision")
        )
        # as Text: a class may be called [red]
        table.add_row(
            Text(score["name"]), f"{score['count']:,}", *shares, Text(score["mistaken_for"])
        )
    return table


@dataclass(frozen=True)
class Predict:
    """Say what is on pictures, of any size and usual format, prepared as the training prepared its own. What is no picture is named and
    skipped; the exit code is then 1.

    Example: paceline predict runs/cifar10-fast-1a2b3c4d cat.jpg photos/ 'more/*.png' --csv"""

    run: _RunName
    """Folder of the run, or its name in runs/."""
    pictures: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PICTURE")]
    """Files, folders (searched to their bottom) and globs."""
    checkpoint: str = "best"
    """best, last or a step. The best is chosen on the validation split; without one it is the last."""
    top: int = 5
    """Classes that are told of each picture, the likeliest first."""
    json: bool = False
    """Print a line of JSON for each picture."""
    csv: bool = False
    """Print comma-separated values."""


def predict(arguments: list[str]) -> int:
    """Say what is on pictures: paceline predict RUN PICTURE|FOLDER|GLOB ..."""
    from paceline.cli.commands import parse
    from paceline.results.in_worker import in_a_worker
    from paceline.results.predict import Prediction, find_files
    from paceline.run_folder.folder import existing_run

    flags = parse(Predict, "paceline predict", arguments, Predict(tyro.MISSING, tyro.MISSING))
    if flags.json and flags.csv:
        raise UserError("--json and --csv were given; choose one of them")
    if flags.top < 1:
        raise UserError(f"top is {flags.top}; it must be 1 or more")
    if not flags.pictures:
        raise UserError("PICTURE is missing; give files, folders or globs such as 'photos/*.jpg'")
    run, files = existing_run(flags.run), find_files(flags.pictures)
    top = min(flags.top, len(run.data_facts().get("classes", ())) or flags.top)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names of files can be any bytes
    show = _show_json if flags.json else _csv_writer(top) if flags.csv else _show_line

    with _listening("predicting") as listen:

        def show_and_count(message: Message) -> None:
            for each in message.predictions if isinstance(message, Predictions) else ():
                prediction = Prediction.from_json(each)
                show(prediction)
                if prediction.error:
                    print(
                        f"paceline: skipped {prediction.file}: it {prediction.error}",
                        file=sys.stderr,
                    )
            sys.stdout.flush()
            listen(message)

        found = in_a_worker(
            "predict",
            run,
            {"files": files, "checkpoint": flags.checkpoint, "top": top},
            show_and_count,
        )
    return 1 if found["faults"] else 0


def _show_line(prediction: Prediction) -> None:
    if not prediction.error:
        print(
            f"{prediction.file}  "
            + "  ".join(f"{name} {share:.4f}" for name, share in prediction.top)
        )


def _show_json(prediction: Prediction) -> None:
    top = [{"class": name, "probability": share} for name, share in prediction.top]
    print(json.dumps(asdict(prediction) | {"top": top}))


def _csv_writer(top: int) -> Callable[[Prediction], None]:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = [f"{name}_{place}" for place in range(1, top + 1) for name in ("class", "probability")]
    writer.writerow(["file", *names, "error"])

    def show(prediction: Prediction) -> None:
        cells = [cell for pair in prediction.top for cell in pair] or [""] * len(names)
        writer.writerow([prediction.file, *cells, prediction.error])

    return show


@contextmanager
def _listening(what: str) -> Iterator[Send]:
    """Shows a worker's warnings, and its progress where it takes longer than two seconds, on standard error; what ends it is told
    as after a training."""
    from paceline.data.tools.progress_bar import late_bar

    done = 0
    with ExitStack() as stack:
        advance: Callable[[float], None] | None = None

        def listen(message: Message) -> None:
            nonlocal advance, done
            if isinstance(message, Warn):
                print(f"note: {message.text}", file=sys.stderr)
            if isinstance(message, Progress):
                advance = advance or stack.enter_context(late_bar(what, message.total))
                advance(message.done - done)
                done = message.done

        yield listen


@dataclass(frozen=True)
class Export:
    """Take a run's model elsewhere, with its class names. keras, savedmodel and onnx are used without Paceline; safetensors are the
    weights alone.

    Example: paceline export runs/shapes-6d2c1f04 model.onnx --to onnx --serving"""

    run: _RunName
    """Folder of the run, or its name in runs/."""
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """File, or folder of a SavedModel."""
    to: Literal["keras", "savedmodel", "onnx", "safetensors"]
    """Which format."""
    serving: bool = False
    """With the preprocessing inside and probabilities out: a SavedModel takes JPEG or PNG files, keras and onnx take pixels."""
    checkpoint: str = "best"
    """best, last or a step. The best is chosen on the validation split; without one it is the last."""
    force: bool = False
    """Replace OUT if it exists."""


def export(arguments: list[str]) -> int:
    """Take a run's model to Keras, TensorFlow, ONNX or safetensors: paceline export RUN OUT --to FORMAT"""
    from paceline.cli.commands import parse
    from paceline.results.export import check_target
    from paceline.results.in_worker import in_a_worker
    from paceline.run_folder.folder import existing_run

    flags = parse(
        Export, "paceline export", arguments, Export(tyro.MISSING, tyro.MISSING, tyro.MISSING)
    )
    if flags.serving and flags.to == "safetensors":
        raise UserError(
            "safetensors hold weights alone; --serving is for keras, savedmodel and onnx"
        )
    run = existing_run(flags.run)
    check_target(flags.out, flags.to, flags.force)
    request = {
        "to": flags.to,
        "out": flags.out,
        "serving": flags.serving,
        "checkpoint": flags.checkpoint,
    }
    with _listening("exporting") as listen:
        done = in_a_worker("export", run, request, listen)
    print(f"wrote {done['out']} (step {done['step']:,}): {done['what']}")
    return 0
