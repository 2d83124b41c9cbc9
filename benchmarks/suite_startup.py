"""The time until training runs and the memory it takes, measured on the command line."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import processes
from benchmarks.harness import ROOT, ContenderFailed, clean_environment
from benchmarks.images import cifar10_folder
from benchmarks.pair import pair_notes
from benchmarks.suites import Settings
from benchmarks.summary import Figure, Quartiles, SuiteResult, quartiles

KERNELS = ("auto", "tensorflow")
REPEATS = 3
MEMORY_STEPS = 40
_POLL_S = 0.1
_TIMEOUT_S = 600.0
Values = dict[str, list[float]]
"""Of each of KERNELS, one per round."""


def run(command: Sequence[str], watch_memory: bool = False) -> tuple[float, int]:
    """Run a command; return its wall time, and if watched its peak memory in bytes.

    The memory includes that of its descendants.
    """
    start, peak_bytes = time.perf_counter(), 0
    with tempfile.TemporaryFile() as output:
        mark = processes.new_mark()
        environment = clean_environment(mark)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=ROOT,
        )
        try:
            while (
                watch_memory and process.poll() is None and time.perf_counter() - start < _TIMEOUT_S
            ):
                peak_bytes = max(peak_bytes, processes.peak_bytes(mark))
                time.sleep(_POLL_S)
            code = process.wait(_TIMEOUT_S)
        finally:
            processes.kill(mark)
            process.wait()
        wall_s = time.perf_counter() - start
        output.seek(0)
        tail = output.read().decode(errors="replace").splitlines()[-15:]
    if code != 0:
        raise ContenderFailed(
            "\n".join(
                [f"{' '.join(command)} ended with exit code {code}; the end of its output:", *tail]
            )
        )
    return wall_s, peak_bytes


def paceline() -> str:
    return str(Path(sys.executable).with_name("paceline"))


def train(
    folder: str, steps: int, watch_memory: bool = False, flags: Sequence[str] = ()
) -> tuple[float, int]:
    """Run `paceline train` in a new run folder, and stop after `steps` steps."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent:
        run_dir = Path(parent, "run")
        flags = ["--data.dir", folder, "--run-dir", str(run_dir), "--stop-at", str(steps), *flags]
        measured = run([paceline(), "train", "cifar10-resnet20", *flags], watch_memory)
        reached = json.loads((run_dir / "result.json").read_text())["step"]
        if reached != steps:
            raise ContenderFailed(f"paceline train --stop-at {steps} ended at step {reached}")
    return measured


def measure(settings: Settings) -> SuiteResult:
    settings.tell("paceline --help")
    run([paceline(), "--help"])
    help_s = [run([paceline(), "--help"])[0] for _ in range(settings.rounds)]
    first_step_s: Values = {kernels: [] for kernels in KERNELS}
    peak_gb: Values = {kernels: [] for kernels in KERNELS}
    with cifar10_folder() as (folder, note):
        for number in range(REPEATS):
            settings.tell(f"the first step and {MEMORY_STEPS} steps, {number + 1} of {REPEATS}")
            for kernels in KERNELS[:: -1 if number % 2 else 1]:
                flags = ("--kernels", kernels)
                first_step_s[kernels].append(train(folder, 1, flags=flags)[0])
                peak = train(folder, MEMORY_STEPS, watch_memory=True, flags=flags)[1]
                peak_gb[kernels].append(peak / 1e9)
    notes = [
        note,
        "command to exit is more than the time to the first step: the run is also saved and closed",
        "memory is the sum of the peak resident sizes of all processes; "
        "shared pages count more than once",
        *pair_notes(),
    ]
    help_figure = Figure("paceline --help", quartiles(help_s), "s")
    return SuiteResult("Start-up and memory", [help_figure, *figures(first_step_s, peak_gb)], notes)


def figures(first_step_s: Values, peak_gb: Values) -> list[Figure]:
    """Return the figures of both kernels, and their ratios, round by round."""
    own, stock = KERNELS
    first = "paceline train --stop-at 1, command to exit"
    memory = f"peak memory of {MEMORY_STEPS} steps of ResNet-20"

    def compared(values: Values) -> Quartiles:
        return quartiles(a / b for a, b in zip(values[own], values[stock], strict=True))

    return [
        Figure(first, quartiles(first_step_s[own]), "s"),
        Figure(f"{first}, TensorFlow's kernels", quartiles(first_step_s[stock]), "s"),
        Figure(f"{first}, ratio", compared(first_step_s), "x"),
        Figure(memory, quartiles(peak_gb[own]), "GB"),
        Figure(f"{memory}, TensorFlow's kernels", quartiles(peak_gb[stock]), "GB"),
        Figure(f"{memory}, ratio", compared(peak_gb), "x"),
    ]
