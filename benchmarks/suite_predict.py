"""The time until a prediction, and its speed against evaluation, with the real command."""

import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.harness import ROOT, ContenderFailed, clean_environment
from benchmarks.images import RECORD_BYTES, cifar10_folder
from benchmarks.suite_startup import paceline, run
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles
from paceline.messages import Message, Predictions, Progress
from paceline.requests import EvaluateRequest, PredictRequest, UseRun
from paceline.results.in_worker import in_a_worker
from paceline.run_folder.folder import RunFolder

REPEATS = 3


def measure(settings: Settings) -> SuiteResult:
    with (
        cifar10_folder() as (folder, note),
        tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent,
    ):
        settings.tell("a run of ResNet-20, and the test pictures as PNG files")
        run_dir, pictures = Path(parent, "run"), Path(parent, "pictures")
        run(
            [
                paceline(),
                "train",
                "cifar10-fast",
                "--data.dir",
                folder,
                "--run-dir",
                str(run_dir),
                "--stop-at",
                "1",
            ]
        )
        files = _write_pictures(Path(folder, "test_batch.bin"), pictures)
        settings.tell("paceline predict of one picture")
        first_s = [_first_answer_s(run_dir, files[0]) for _ in range(REPEATS)]
        evaluated, predicted = [], []
        for turn in range(settings.rounds):
            settings.tell(
                f"evaluation and prediction of 10,000 pictures, {turn + 1} of {settings.rounds}"
            )
            evaluated.append(_images_per_s(run_dir, EvaluateRequest("last")))
            predicted.append(_images_per_s(run_dir, PredictRequest(tuple(files), "last")))
    figures = [
        Figure("paceline predict, command to first answer", quartiles(first_s), "s"),
        Figure("paceline eval after its first batch", quartiles(evaluated), "images/s"),
        Figure("paceline predict after its first batch", quartiles(predicted), "images/s"),
        Figure(
            "predict to eval, turn by turn",
            quartiles([p / e for p, e in zip(predicted, evaluated, strict=True)]),
            "",
        ),
    ]
    return SuiteResult(
        "Prediction", figures, [note, "ResNet-20, 10,000 PNG files of 32 x 32 pixels"]
    )


def _write_pictures(batch: Path, folder: Path) -> list[str]:
    folder.mkdir()
    pixels = (
        np.fromfile(batch, np.uint8)
        .reshape(-1, RECORD_BYTES)[:, 1:]
        .reshape(-1, 3, 32, 32)
        .transpose(0, 2, 3, 1)
    )
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(folder / f"{number:05d}.png")
    return [str(folder / f"{number:05d}.png") for number in range(len(pixels))]


def _first_answer_s(run_dir: Path, file: str) -> float:
    began = time.perf_counter()
    command = [paceline(), "predict", str(run_dir), file]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=clean_environment({}),
        cwd=ROOT,
    ) as process:
        assert process.stdout
        answered = process.stdout.readline()
        seconds = time.perf_counter() - began
    if process.returncode or file.encode() not in answered:
        raise ContenderFailed(
            f"{' '.join(command)} ended with exit code {process.returncode} and said {answered!r}"
        )
    return seconds


def _images_per_s(run_dir: Path, request: UseRun) -> float:
    """Return the speed between the first message of a batch and the last."""
    heard: list[tuple[float, int]] = []

    def listen(message: Message) -> None:
        if isinstance(message, Progress):
            heard.append((time.perf_counter(), message.done))
        if isinstance(message, Predictions):
            before = heard[-1][1] if heard else 0
            heard.append((time.perf_counter(), before + len(message.predictions)))

    in_a_worker(RunFolder(run_dir), request, listen)
    (first_s, first), (last_s, last) = heard[0], heard[-1]
    return (last - first) / (last_s - first_s)
