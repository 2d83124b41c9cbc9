"""Parameter servers against workers with an all-reduce: ResNet-56 on two workers.

Both are measured undisturbed and with one worker slowed down.
"""

import sys

from benchmarks.harness import Contender
from benchmarks.images import cifar10_folder
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, ratio, rows

DEPTH = "56"
SYNC = ("--workers", "2", "--ps", "1")
VARIANTS = {
    "workers": ("steady", "--workers", "2"),
    "sync": ("steady", *SYNC),
    "async": ("steady", *SYNC, "--sync.method", "async"),
    "sync-slowed": ("slowed", *SYNC),
    "async-slowed": ("slowed", *SYNC, "--sync.method", "async"),
}


def measure(settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        command = (sys.executable, "-m", "benchmarks.contender_paceline_cluster", DEPTH, folder)
        contenders = [Contender(name, (*command, *flags)) for name, flags in VARIANTS.items()]
        measured = settings.alternate(contenders)
    figures = [
        Figure(
            "images/s, synchronous to --workers 2",
            ratio(measured["sync"], measured["workers"]),
            "x",
        ),
        Figure(
            "images/s, asynchronous to --workers 2",
            ratio(measured["async"], measured["workers"]),
            "x",
        ),
        Figure(
            "images/s, asynchronous with a slow worker to without",
            ratio(measured["async-slowed"], measured["async"]),
            "x",
        ),
        Figure(
            "images/s, synchronous with a slow worker to without",
            ratio(measured["sync-slowed"], measured["sync"]),
            "x",
        ),
    ]
    notes = [
        note,
        "sync and async: --workers 2 --ps 1; "
        "a slow worker is stopped for three quarters of the time (SIGSTOP, SIGCONT)",
        "a turn is a few blocks of training, 4 s or more, whatever --turn-seconds is; "
        "between turns the workers are stopped",
    ]
    title = f"Parameter servers, ResNet-{DEPTH}, global batch 128, 2 replicas"
    return SuiteResult(title, figures, notes, "workers", rows(measured, "workers"))
