"""Two Spark tasks against two processes, and `paceline.spark.predict` against `eval`."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes
from benchmarks.harness import ROOT, Contender, ContenderFailed, clean_environment
from benchmarks.images import cifar10_folder
from benchmarks.suite_startup import paceline
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles, ratio, rows

TRAININGS = 3
STEPS = 60
ON_SPARK = ("--on", "spark", "--spark.master", "local-cluster[2,1,1024]")
_POLL_S = 0.05
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Training:
    """Seconds to the first step, images/s after it, and the driver's peak memory.

    The memory is that of Python and of Spark's Java.
    """

    first_step_s: float
    images_per_s: float
    driver_bytes: int


def train(
    folder: str,
    run_dir: Path,
    *flags: str,
    steps: int = STEPS,
    start_by: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Training:
    """Run `paceline train` in a new run folder, on two workers; `start_by` is a launcher."""
    arguments = ["--data.dir", folder, "--run-dir", str(run_dir), "--workers", "2"]
    arguments += ["--stop-at", str(steps), *flags]
    mark, start, first_step_s, peak_bytes = processes.new_mark(), time.perf_counter(), 0.0, 0
    with tempfile.NamedTemporaryFile() as output:
        command = [*start_by, paceline(), "train", "cifar10-resnet20", *arguments]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=clean_environment(mark) | dict(environment or {}),
            cwd=ROOT,
        )
        try:
            while process.poll() is None and time.perf_counter() - start < _TIMEOUT_S:
                if not first_step_s and b"\nstep 1/" in Path(output.name).read_bytes():
                    first_step_s = time.perf_counter() - start
                drivers = [
                    pid
                    for pid in processes.group(mark)
                    if pid == process.pid or _is_drivers_java(pid)
                ]
                peak_bytes = max(peak_bytes, sum(processes.peak_bytes_of(pid) for pid in drivers))
                time.sleep(_POLL_S)
            code = process.poll()
        finally:
            processes.kill(mark)
            process.wait()
        tail = Path(output.name).read_text(errors="replace").splitlines()[-15:]
    if code != 0 or not first_step_s:
        raise ContenderFailed(
            "\n".join(
                [f"{' '.join(command)} ended with exit code {code}; the end of its output:", *tail]
            )
        )
    return Training(
        first_step_s,
        json.loads((run_dir / "result.json").read_text())["images_per_second"],
        peak_bytes,
    )


def _is_drivers_java(pid: int) -> bool:
    return "pyspark-shell" in processes.command_of(pid)


def measure(settings: Settings) -> SuiteResult:
    with (
        cifar10_folder() as (folder, note),
        tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent,
    ):
        pairs = []
        for number in range(TRAININGS):
            settings.tell(f"training {number + 1} of {TRAININGS}, on Spark and on this machine")
            order = [("spark", ON_SPARK), ("local", ())][:: 1 if number % 2 else -1]
            pairs.append(
                {
                    name: train(folder, Path(parent, f"{name}-{number}"), *flags)
                    for name, flags in order
                }
            )
        run = str(Path(parent, "local-0"))
        contenders = [
            Contender(name, (sys.executable, "-m", "benchmarks.contender_spark", name, run, folder))
            for name in ("predict", "eval")
        ]
        measured = settings.alternate(contenders)
    figures = [
        Figure(
            "images/s after the first step, 2 Spark tasks x 1 core to --workers 2",
            quartiles(pair["spark"].images_per_s / pair["local"].images_per_s for pair in pairs),
            "x",
        ),
        Figure(
            "command to first step, --workers 2",
            quartiles(pair["local"].first_step_s for pair in pairs),
            "s",
        ),
        Figure(
            "command to first step, Spark's more",
            quartiles(pair["spark"].first_step_s - pair["local"].first_step_s for pair in pairs),
            "s",
        ),
        Figure(
            "peak memory of the driver, Python and Java",
            quartiles(pair["spark"].driver_bytes / 1e9 for pair in pairs),
            "GB",
        ),
        Figure("images/s, predict to eval", ratio(measured["predict"], measured["eval"]), "x"),
    ]
    notes = [
        note,
        f"ResNet-20, {STEPS} steps of 128; local-cluster[2,1,1024]; "
        "predict decodes PNGs in local[2], eval reads the files of CIFAR",
    ]
    return SuiteResult("Spark on this machine", figures, notes, "eval", rows(measured, "eval"))
