"""`paceline data convert` against decoding the same JPEGs with PIL on the same cores."""

from __future__ import annotations

import sys

from benchmarks.harness import Contender, alternate
from benchmarks.pictures import picture_folder
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, Target, ratio, rows

CONVERT_TARGET = Target(">=", 0.8)
PICTURES = 6000
"""About three seconds of work, so that the start of processes (0.5 s) counts little."""


def measure(settings: Settings) -> SuiteResult:
    with picture_folder(PICTURES) as (folder, note):
        contenders = [
            Contender(name, (sys.executable, "-m", "benchmarks.contender_convert", kind, folder))
            for name, kind in (("convert", "paceline"), ("decode", "pil"))
        ]
        measured = alternate(contenders, settings.rounds, settings.turn_seconds, tell=settings.tell)
    speed = ratio(measured["convert"], measured["decode"])
    figure = Figure("images/s, convert to decoding by PIL", speed, "x", CONVERT_TARGET)
    notes = [
        note,
        "a conversion starts new processes, and its shards are on disk (fsync) when it ends; "
        "both read from the cache",
    ]
    return SuiteResult(
        "Conversion of a folder of JPEGs to TFRecords",
        [figure],
        notes,
        "decode",
        rows(measured, "decode"),
    )
