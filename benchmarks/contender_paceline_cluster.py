"""Several processes of `paceline train` on this machine.

    python -m benchmarks.contender_paceline_cluster DEPTH DATA_FOLDER SLOWED [flags of train ...]

A turn is a few blocks of training, about five seconds. Between turns all workers are stopped
(SIGSTOP), so that none computes ahead. If SLOWED is "slowed", the first worker beside parameter
servers is stopped for three quarters of every turn, a fifth of a second at a time.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path

from benchmarks import processes
from benchmarks.protocol import Channel
from benchmarks.turns import FOLDER

BATCH = 128
SLICE_S, TURN_S = 0.2, 4.0
FLAGS = (
    "--global-batch-size",
    str(BATCH),
    "--replicas",
    "2",
    "--epochs",
    "10000",
    "--evaluate-every",
    "0",
    "--save-every",
    "0",
)
PATIENCE = ("--stall-timeout", "100000", "--start-timeout", "100000", "--max-restarts", "0")


def workers(mark: dict[str, str]) -> list[int]:
    """Return the worker processes, chief first."""
    return sorted(
        pid for pid in processes.group(mark) if "paceline.worker" in processes.read(pid, "cmdline")
    )


class Slow:
    """Stops a process for three quarters of the time, as long as it is entered."""

    def __init__(self, pid: int) -> None:
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SLICE_S):
            os.kill(self._pid, signal.SIGSTOP)
            self._over.wait(3 * SLICE_S)
            os.kill(self._pid, signal.SIGCONT)


class Cluster:
    """A running `paceline train` that waits after its first block."""

    def __init__(self, folder: Path, depth: str, data: str, flags: list[str]) -> None:
        self._folder, self._mark = folder, processes.own_mark()
        for name in ("go", "done"):
            os.mkfifo(folder / name)
        recipe = (f"cifar10-resnet{depth}", "--data.dir", data, "--run-dir", str(folder / "run"))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "paceline",
                "train",
                *recipe,
                *FLAGS,
                *PATIENCE,
                *flags,
                "--actions",
                "benchmarks.turns:take_turn",
            ],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=os.environ | {FOLDER: str(folder)},
        )
        threading.Thread(target=self._end_when_it_ends, daemon=True).start()
        self._block_done()
        self._signal(signal.SIGSTOP)

    def _end_when_it_ends(self) -> None:
        self._process.wait()
        os._exit(1)

    def _block_done(self) -> dict[str, float]:
        with open(self._folder / "done") as pipe:
            return json.loads(pipe.read())

    def _signal(self, number: int) -> int:
        """Signal all workers but the chief, which waits by itself, and return the first."""
        _, first, *others = workers(self._mark)
        for pid in (first, *others):
            os.kill(pid, number)
        return first

    def turn(self, slowed: bool) -> tuple[float, float, float]:
        """Return images, wall and CPU seconds of some blocks; the wait shortens the first."""
        first, before, images, wall_s = (
            self._signal(signal.SIGCONT),
            processes.cpu_s(self._mark),
            0.0,
            0.0,
        )
        with Slow(first) if slowed else nullcontext():
            while wall_s < TURN_S:
                with open(self._folder / "go", "w") as pipe:
                    pipe.write("go")
                told = self._block_done()
                images += told["steps"] * BATCH
                wall_s += told["steps"] * BATCH / told["images_per_s"]
        self._signal(signal.SIGSTOP)
        return images, wall_s, processes.cpu_s(self._mark) - before


def main() -> None:
    depth, data, slowed, *flags = sys.argv[1:]
    channel = Channel()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        cluster = Cluster(Path(folder), depth, data, flags)
        while channel.next_turn() is not None:
            channel.report(*cluster.turn(slowed == "slowed"))


if __name__ == "__main__":
    main()
