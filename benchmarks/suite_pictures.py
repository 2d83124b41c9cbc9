"""Input of large images: JPEG shards to augmented batches, against a plain tf.data pipeline.

It also measures a start in the middle of an epoch.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.harness import Contender, Measured, alternate
from benchmarks.pictures import BATCH_SIZE, picture_folder
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, Target, best, quartiles, ratio, rows
from paceline.formats.convert import convert

INPUT_TARGET = Target(">=", 0.95)
START_TARGET = Target("<=", 1.1)
START_TURN_S = 1.0
"""A start builds a core, which does not count, and one batch. Longer turns take minutes."""


def contender(name: str, module: str, *arguments: str) -> Contender:
    return Contender(name, (sys.executable, "-m", f"benchmarks.contender_{module}", *arguments))


def start_figures(measured: Mapping[str, Measured]) -> list[Figure]:
    def seconds(kind: str) -> Figure:
        return Figure(
            f"a batch of {BATCH_SIZE}: {kind}",
            quartiles(BATCH_SIZE / turn.images_per_s for turn in measured[kind].turns),
            "s",
        )

    return [
        Figure(
            "time from a built core to the last batch of an epoch, to its first",
            ratio(measured["start first"], measured["start last"]),
            "x",
            START_TARGET,
        ),
        Figure(
            "the same without building the graph",
            ratio(measured["again first"], measured["again last"]),
            "x",
            START_TARGET,
        ),
        *(seconds(kind) for kind in measured),
    ]


def measure(settings: Settings) -> SuiteResult:
    with (
        picture_folder() as (folder, note),
        tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent,
    ):
        settings.tell("writing shards")
        shards = str(Path(parent, "shards"))
        convert(folder, shards, console=Console(quiet=True))
        pipelines = [
            contender("paceline", "paceline_pictures", "batches", shards),
            *(contender(f"tf.data-{kind}", "tfdata", kind, shards) for kind in ("plain", "tuned")),
        ]
        measured = alternate(pipelines, settings.rounds, settings.turn_seconds, tell=settings.tell)
        places = [
            contender(f"{kind} {place}", "paceline_pictures", kind, place, shards)
            for kind in ("start", "again")
            for place in ("first", "last")
        ]
        starts = alternate(
            places, settings.rounds, min(settings.turn_seconds, START_TURN_S), tell=settings.tell
        )
    baseline = best(measured, "tf.data-")
    speed = ratio(measured["paceline"], measured[baseline])
    cpu = ratio(measured[baseline], measured["paceline"], lambda turn: turn.cpu_ms_per_image)
    figures = [
        Figure(
            f"images/s, paceline's input to tf.data's best ({baseline})", speed, "x", INPUT_TARGET
        ),
        Figure(f"CPU time per image, {baseline} to paceline", cpu, "x"),
        *start_figures(starts),
    ]
    title = f"Input alone, JPEG shards to augmented 224x224 batches of {BATCH_SIZE}"
    return SuiteResult(title, figures, [note], baseline, rows(measured, baseline))
