"""The cost of a lost worker: from its SIGKILL to the next trained block, minus a start.

No checkpoint was saved before: the state comes from the memory of the other worker.
"""

import os
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.contender_paceline import build_experiment
from benchmarks.harness import ContenderFailed
from benchmarks.images import cifar10_folder
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles
from paceline.job import Job, Place, Run
from paceline.launch import launch
from paceline.messages import Block, Message, Start

REPEATS = 3
KILL_AFTER_STEPS = 5
IN_A_BLOCK_S = 0.5
"""After the end of a block, the next one is under way."""


def workers() -> list[int]:
    """Return the worker processes that this process started, in their order."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if (
                int(fields[1]) == os.getpid()
                and b"paceline.worker" in (entry / "cmdline").read_bytes()
                and fields[0] != "Z"
            ):
                found.append(int(entry.name))
        except (OSError, IndexError, ValueError):
            continue
    return sorted(found)


class _Listener:
    """Kills the second worker in the middle of an epoch, and stops when the run trains again."""

    def __init__(self) -> None:
        self.began, self.first_block, self.killed, self.again = time.perf_counter(), 0.0, 0.0, 0.0
        self.reached = self.resumed = -1

    def __call__(self, message: Message) -> None:
        now = time.perf_counter()
        if isinstance(message, Start) and self.killed:
            self.resumed = message.first_step
        if isinstance(message, Block):
            self.first_block = self.first_block or now
            if self.resumed >= 0 and message.step > self.resumed:
                self.again = now
                raise StopIteration
            if not self.killed:
                self.reached = message.step
            if message.step >= KILL_AFTER_STEPS and not self.killed:
                time.sleep(IN_A_BLOCK_S)
                self.killed = time.perf_counter()
                os.kill(workers()[1], signal.SIGKILL)


def once(folder: str) -> tuple[float, float]:
    """Return the seconds of the start, and of the recovery beyond a start."""
    experiment = replace(build_experiment(20, folder), save_every=1.0)
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent:
        listener = _Listener()
        place, run = Place(on="local", workers=2), Run(str(Path(parent, "run")))
        launch(Job(experiment, place, run), listener)
    if listener.resumed < listener.reached:
        raise ContenderFailed(
            f"the run continued from step {listener.resumed}, but step {listener.reached} was done"
        )
    start_s = listener.first_block - listener.began
    return start_s, listener.again - listener.killed - start_s


def measure(settings: Settings) -> SuiteResult:
    measured = []
    with cifar10_folder() as (folder, note):
        for number in range(REPEATS):
            settings.tell(f"{number + 1} of {REPEATS}")
            measured.append(once(folder))
    starts, recoveries = zip(*measured, strict=True)
    figures = [
        Figure(
            "SIGKILL of a worker to the next trained block, less a start",
            quartiles(recoveries),
            "s",
        ),
        Figure("a start, to its first block", quartiles(starts), "s"),
    ]
    return SuiteResult(
        "Recovery of a two-worker run, ResNet-20",
        figures,
        [note, "a negative figure: the second start was quicker"],
    )
