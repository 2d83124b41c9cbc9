"""Checks this machine: each finding is good, slow or broken, and says what to do.

Ray and Spark are checked when a training on them starts.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from paceline.errors import first_line
from paceline.kernels.library import uses_avx512, uses_avx512_bf16, why_unavailable
from paceline.versions import library_versions

LITTLE_DISK_GB = 1.0


class Finding(NamedTuple):
    state: Literal["good", "slow", "broken"]
    what: str
    text: str


def examine_machine(run_dir: str) -> Iterator[Finding]:
    """Yield the findings of all checks, each as soon as it is known."""
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    yield Finding("good", "versions", versions)
    yield check_tensorflow()
    yield check_kernels()
    yield check_cores()
    yield check_run_folder(Path(run_dir))


def check_tensorflow() -> Finding:
    """Import TensorFlow; check its version, the backend of Keras, and the devices."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import keras
        import tensorflow as tf
    except Exception as error:  # a broken installation can raise anything
        advice = "pip install 'paceline[cpu]' or 'paceline[gpu]'"
        return Finding("broken", "TensorFlow", f"{first_line(error)}; {advice}")
    if (backend := keras.backend.backend()) != "tensorflow":
        return Finding("broken", "Keras", f"its backend is {backend}; unset KERAS_BACKEND")
    gpus = len(tf.config.list_physical_devices("GPU"))
    if not gpus and Path("/proc/driver/nvidia").exists():
        text = "there is an NVIDIA driver, but TensorFlow finds no GPU"
        return Finding("broken", "TensorFlow", f"{text}: pip install 'paceline[gpu]'")
    if not tf.__version__.startswith("2.21."):
        text = f"{tf.__version__}; Paceline is tested with 2.21: install that"
        return Finding("slow", "TensorFlow", text)
    return Finding("good", "TensorFlow", f"{tf.__version__}, {gpus} GPUs")


def check_kernels() -> Finding:
    if reason := why_unavailable():
        text = f"TensorFlow's are used, at about half the speed: {reason}"
        return Finding("slow", "kernels", text)
    instructions = ", with AVX-512" * uses_avx512() + ", with AVX512_BF16" * uses_avx512_bf16()
    text = f"Paceline's, for convolutions and BatchNorm on CPUs{instructions}"
    return Finding("good", "kernels", text)


def check_cores() -> Finding:
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    limit = Path("/sys/fs/cgroup/cpu.max")
    quota, period = (limit.read_text() if limit.exists() else "max 1").split()
    text = f"{cores} for Paceline; training is fastest with as many --replicas"
    if quota != "max" and int(quota) / int(period) < cores:
        most = f"this container may use only {int(quota) / int(period):.1f} at a time"
        return Finding("slow", "cores", f"{text}. But {most}: start it with taskset or a cpuset")
    if load > 0.5 * cores:
        advice = f"other programs use {load:.1f}: wait, or end them"
        return Finding("slow", "cores", f"{text}. But {advice}")
    return Finding("good", "cores", text)


def check_run_folder(folder: Path) -> Finding:
    """Write a file where runs are written, or in the nearest folder that exists."""
    parents = (folder.absolute(), *folder.absolute().parents)
    existing = next(each for each in parents if each.is_dir())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        text = f"cannot write to {existing} ({error}); use another --run-dir"
        return Finding("broken", "run folder", text)
    free = shutil.disk_usage(existing).free / 1e9
    text = f"{existing} can be written and has {free:,.0f} GB free"
    if free < LITTLE_DISK_GB:
        return Finding("slow", "run folder", f"{text}: checkpoints need more; free some space")
    return Finding("good", "run folder", text)
