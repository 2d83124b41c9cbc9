"""Checks of this machine: each finding is good, slow or broken, and says what to do.

TensorFlow is checked in a separate process, because its settings can be made only once in each
process. Ray and Spark are checked when a training on them starts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from paceline.kernels.library import why_unavailable
from paceline.versions import library_versions

LITTLE_MEMORY_GB, LITTLE_DISK_GB, SLOW_MB_PER_S = 2.0, 1.0, 30
TIMEOUT_S, TEST_FILE_MB = 60, 32


class Finding(NamedTuple):
    state: Literal["good", "slow", "broken"]
    what: str
    text: str


good = partial(Finding, "good")
slow = partial(Finding, "slow")
broken = partial(Finding, "broken")


def examine_machine(run_dir: str) -> Iterator[Finding]:
    """Yield the findings of all checks, each as soon as it is known."""
    yield good("versions", ", ".join(f"{name} {v}" for name, v in library_versions().items()))
    yield from check_tensorflow()
    yield check_kernels()
    yield check_cores()
    yield check_memory()
    yield check_run_folder(Path(run_dir))


PROBE = """
import json, time
began = time.perf_counter()
import keras, tensorflow as tf
print(json.dumps({
    "tensorflow": tf.__version__, "import_s": time.perf_counter() - began,
    "backend": keras.backend.backend(), "gpus": len(tf.config.list_physical_devices("GPU")),
}))
"""


def check_tensorflow() -> Iterator[Finding]:
    """Import TensorFlow in a separate process; check its version, Keras and the devices."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        yield slow("TensorFlow", f"no answer within {TIMEOUT_S} s: end programs that are busy")
        return
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield broken("TensorFlow", f"{reason}; pip install 'paceline[cpu]' or 'paceline[gpu]'")
        return
    found = json.loads(done.stdout.splitlines()[-1])
    text = f"{found['tensorflow']}, imported in {found['import_s']:.1f} s"
    if found["tensorflow"].startswith("2.21."):
        yield good("TensorFlow", text)
    else:
        yield slow("TensorFlow", f"{text}; Paceline is tested with 2.21: install that")
    if found["backend"] != "tensorflow":
        yield broken("Keras", f"its backend is {found['backend']}; unset KERAS_BACKEND")
    if gpus := found["gpus"]:
        yield good("devices", f"{gpus} GPU{'s' * (gpus > 1)}; --devices cpu trains without them")
    elif Path("/proc/driver/nvidia").exists():
        text = "there is an NVIDIA driver, but TensorFlow finds no GPU"
        yield broken("devices", f"{text}: pip install 'paceline[gpu]'")
    else:
        yield good("devices", "CPU only")


def check_kernels() -> Finding:
    if reason := why_unavailable():
        return slow("kernels", f"TensorFlow's are used, at about half the speed: {reason}")
    return good("kernels", "Paceline's, for convolutions and BatchNorm on CPUs")


def check_cores() -> Finding:
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    quota, period = (_cgroup("cpu.max") or "max 1").split()
    text = f"{cores} for Paceline; training is fastest with as many --replicas"
    if quota != "max" and int(quota) / int(period) < cores:
        limit = f"this container may use only {int(quota) / int(period):.1f} at a time"
        return slow("cores", f"{text}. But {limit}: start it with taskset or a cpuset")
    if load > 0.5 * cores:
        return slow("cores", f"{text}. But other programs use {load:.1f}: wait, or end them")
    return good("cores", text)


def _cgroup(name: str) -> str:
    try:
        return Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return ""


def check_memory() -> Finding:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    free = int(found[1]) / 1e6 if found else 0.0
    if (limit := _cgroup("memory.max")).isdigit():
        free = min(free, (int(limit) - int(_cgroup("memory.current"))) / 1e9)
    text = f"{free:.1f} GB free; a worker needs 1 to 2 GB"
    if free < LITTLE_MEMORY_GB:
        return slow("memory", f"{text}: free some, or use fewer --workers")
    return good("memory", text)


def check_run_folder(folder: Path) -> Finding:
    """Write a file where runs are written, or in the nearest folder that exists, and time it."""
    parents = (folder.absolute(), *folder.absolute().parents)
    existing = next(each for each in parents if each.is_dir())
    free = shutil.disk_usage(existing).free / 1e9
    began = time.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            for _ in range(TEST_FILE_MB):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return broken("run folder", f"cannot write to {existing} ({error}); use another --run-dir")
    speed = TEST_FILE_MB / (time.perf_counter() - began)
    text = f"{speed:,.0f} MB/s to {existing}, {free:,.0f} GB free"
    if free < LITTLE_DISK_GB or speed < SLOW_MB_PER_S:
        return slow("run folder", f"{text}: checkpoints need more; use another --run-dir")
    return good("run folder", text)
