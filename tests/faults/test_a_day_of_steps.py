"""What a run needs does not grow with its length: the steps of a day, the first hour and the last.

    python -m pytest -m hours tests/faults/test_a_day_of_steps.py -s

A run of a day has 17,280 blocks of 5 s. Here each block has a few steps of a tiny experiment, and
after each there is an evaluation, a checkpoint and a line of metrics: more than in any real run.
"""

import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from helpers import Program, program, result_of

BLOCKS = int(os.environ.get("PACELINE_TEST_BLOCKS", 24 * 3600 // 5))
TINY = ("--data.train-size", "128", "--data.test-size", "16", "--data.image-size", "8")
EACH = ("--epochs", str(BLOCKS), "--evaluate-every", "1", "--save-every", "1")
FOLDER = "paceline-day-"
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""The folder is in memory: on a disk, a block waits for its files for twice as long as it takes."""
GROWTH_MB = 8.0
"""A process may need this much more in the last hour: pieces of its heap are of different sizes."""


def memory_mb(pid: int) -> float:
    """Return the own memory of a process: the share of a library depends on other programs."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(
        int(line.split()[1]) / 1e3 for line in lines if line.startswith(("Anonymous:", "Swap:"))
    )


def shared_mb(pid: int) -> float:
    """Return the size of the shared memory that a process has open, with a name or without."""
    opened = Path(f"/proc/{pid}/fd").iterdir()
    shared = f"memfd|/dev/shm/(?!{FOLDER})"
    found = [path for path in opened if re.search(shared, os.readlink(path))]
    return sum(path.stat().st_size / 1e6 for path in found)


MEASURES: dict[str, Callable[[int], float]] = {
    "memory, MB": memory_mb,
    "shared memory, MB": shared_mb,
    "open files": lambda pid: len(os.listdir(f"/proc/{pid}/fd")),
    "threads": lambda pid: len(os.listdir(f"/proc/{pid}/task")),
}


def sample(running: Program, run: Path) -> dict[str, float]:
    """Return each measure of each process, and how many files and processes there are."""
    pids = {"command": running.pid} | {
        f"worker {number}": pid for number, pid in enumerate(running.workers())
    }
    found = {
        f"{name}: {what}": measure(pid)
        for name, pid in pids.items()
        for what, measure in MEASURES.items()
    }
    found["processes"] = len(running.processes())
    found["files of the run"] = sum(path.is_file() for path in run.rglob("*"))
    return found


def num_blocks(run: Path) -> int:
    with suppress(FileNotFoundError):
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


@pytest.mark.hours
@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_the_last_hour_of_a_day_needs_no_more_than_the_first() -> None:
    with tempfile.TemporaryDirectory(prefix=FOLDER, dir=MEMORY) as folder:
        compare_hours(Path(folder))


def compare_hours(folder: Path) -> None:
    run, samples = folder / "run", list[tuple[int, dict[str, float]]]()
    flags = ("train", "smoke", "--run-dir", "run", "--workers", "2", *TINY, *EACH)
    to_file = ("bash", "-c", 'exec "$@" > out', "bash")  # a pipe that nobody reads fills up
    with program(*flags, cwd=folder, inside=to_file) as running:
        while running.is_running():
            time.sleep(0.5)
            with suppress(OSError):  # a process has just ended
                samples.append((num_blocks(run), sample(running, run)))
        ended = running.wait()
    assert ended.code == 0, ended
    assert result_of(run)["finished"], "of as many blocks"
    hour = BLOCKS // 24
    # the first hundred blocks compile, and fill what is kept for later
    first = [each for done, each in samples if 100 < done <= 100 + hour]
    last = [each for done, each in samples if done > BLOCKS - hour][:-3]
    assert min(len(first), len(last)) > 3, "too few samples"
    grown = list[str]()
    for name in first[0]:
        before, after = (statistics.median(each[name] for each in hours) for hours in (first, last))
        print(f"{name:30} {before:10.2f} {after:10.2f}")
        if after > before + GROWTH_MB * ("memory" in name):
            grown.append(f"{name}: {before:.2f}, then {after:.2f}")
    assert not grown
