"""Trains short experiments in many environments and prints their digests, one row for each.

    python tests/environments/compare.py
    python tests/environments/compare.py --experiments smoke shapes --environments native Haswell
    python tests/environments/compare.py --python aarch64=PYTHON 3.13=PYTHON

An environment is this machine, this machine whose libraries use the instructions of a different
CPU, a CPU that QEMU emulates, or any other PYTHON that has Paceline. The command fails if an
experiment has two digests. Not a test itself.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from helpers import paceline
from image_folders import write_images

QEMU = "qemu-x86_64-static"
HOURS_S = 4 * 3600.0
PATIENT = ("--start-timeout", "9000", "--stall-timeout", "9000", "--max-restarts", "0")


@dataclass(frozen=True)
class Environment:
    """A Python with Paceline, and the variables that it runs with."""

    python: str = sys.executable
    variables: dict[str, str] = field(default_factory=dict)


ONEDNN = "ONEDNN_MAX_CPU_ISA"
CAPS = {
    "oneDNN AVX-512": {ONEDNN: "AVX512_CORE"},
    "oneDNN AVX2": {ONEDNN: "AVX2"},
    "oneDNN SSE4.1": {ONEDNN: "SSE41"},
    "OpenBLAS Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "NumPy SSE4.2": {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"},
    "glibc without FMA": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F"},
}
"""What makes a library compute as on an older CPU."""
ALL_CAPS = {name: value for each in CAPS.values() for name, value in each.items()}
"""All of them; oneDNN's is the last and strictest."""
EMULATED = ("Haswell", "Skylake-Client", "EPYC")
"""CPUs of QEMU with AVX2, without AVX-512."""

SPEEDRUN = (
    *("cifar10-speedrun", "--data.source", "shapes", "--data.train-size", "320"),
    *("--data.test-size", "32", "--augment.sizes", "16", "--augment.size-epochs", "0.5"),
    *("--model.width", "8", "--model.whitening", "40", "--global-batch-size", "16"),
    *("--replicas", "2", "--steps", "20"),
)
SHORT = ("--global-batch-size", "32", "--steps", "20")
EXPERIMENTS = {
    "smoke": ("smoke",),
    "bfloat16": ("smoke", "--precision", "bfloat16"),
    "shapes": ("shapes", *SHORT, "--data.test-size", "100"),
    "cifar10-fast": ("cifar10-fast", *SHORT, "--data.dir", "CIFAR"),
    "speedrun": SPEEDRUN,
    "my-images": (
        *("my-images", "--global-batch-size", "16", "--steps", "5", "--data.dir", "IMAGES"),
        # not the network for images as small as these
        *("--data.image-size", "64", "--model.layout", "imagenet", "--model.depth", "18"),
        *("--augment.crop-area-min", "0.25"),
    ),
    "TensorFlow": ("smoke", "--kernels", "tensorflow"),
}
"""What is trained: small enough for QEMU, where a step takes a hundred times as long. The last is
the control: TensorFlow's kernels depend on the CPU."""
EXACT = tuple(name for name in EXPERIMENTS if name != "TensorFlow")


def write_cifar(folder: Path, per_file: int = 600) -> Path:
    """Write CIFAR-10's files with noise in them, few records each."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        rows = noise.integers(0, 256, (per_file if "data" in name else 100, 3073), np.uint8)
        rows[:, 0] %= 10
        rows.tofile(folder / f"{name}.bin")
    return folder


def emulate(cpu: str, folder: Path) -> Environment:
    """Return this Python on a CPU of QEMU. It is a script, so that workers start through it too."""
    script, python = folder / f"python-{cpu}", os.path.realpath(sys.executable)
    paths = [str(Path(__file__).parents[2] / "src"), *filter(None, sys.path)]
    command = f'exec {QEMU} -cpu {cpu} -0 {script} {python} "$@"'
    script.write_text(f"#!/bin/sh\nexport PYTHONPATH={os.pathsep.join(paths)}\n{command}\n")
    script.chmod(0o755)
    return Environment(str(script))


def environments(folder: Path) -> dict[str, Environment]:
    """Return the environments that this machine has."""
    found = {"native": Environment()}
    found |= {name: Environment(variables=caps) for name, caps in CAPS.items()}
    found["all of these"] = Environment(variables=ALL_CAPS)
    if shutil.which(QEMU):
        found |= {cpu: emulate(cpu, folder) for cpu in EMULATED}
    return found


def digest(experiment: str, environment: Environment, data: dict[str, str], folder: Path) -> str:
    """Train; return the digest of the state. Raise RuntimeError if the command fails."""
    flags = [data.get(each, each) for each in EXPERIMENTS[experiment]]
    run = Path(tempfile.mkdtemp(dir=folder)) / "run"
    ended = paceline(
        *("train", *flags, "--run-dir", str(run), *PATIENT),
        cwd=folder,
        timeout_s=HOURS_S,
        environment=environment.variables,
        command=(environment.python, "-m", "paceline"),
    )
    if ended.code:
        raise RuntimeError(f"{experiment} failed: {ended.err.strip() or ended.out}")
    return ended.last_line["state_sha256"]


def compare(
    names: Sequence[str], trained: dict[str, Environment], data: dict[str, str], folder: Path
) -> dict[str, set[str]]:
    """Print a table of digests; return those of each experiment."""
    found = {name: set[str]() for name in names}
    print(f"| environment | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}", flush=True)
    for where, environment in trained.items():
        print(f"| {where} |", end="", flush=True)
        for name in names:
            value = digest(name, environment, data, folder)
            found[name].add(value)
            print(f" {value[:8]} |", end="", flush=True)
        print(flush=True)
    return found


def made_data(folder: Path) -> dict[str, str]:
    """Make the data that experiments need, small."""
    images = write_images(folder / "images", per_class=60)
    return {"CIFAR": str(write_cifar(folder / "cifar")), "IMAGES": str(images)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", nargs="+", choices=EXPERIMENTS, default=EXACT)
    parser.add_argument("--environments", nargs="+", help="by default all, with those of --python")
    parser.add_argument("--python", nargs="+", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--cifar", help="the folder of CIFAR-10; by default noise")
    parser.add_argument("--images", help="a folder of images; by default noise")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-environments-") as name:
        folder = Path(name)
        known = environments(folder)
        known |= {each: Environment(path) for each, path in (n.split("=", 1) for n in given.python)}
        data = made_data(folder)
        data |= {key: value for key in data if (value := getattr(given, key.lower()))}
        chosen = {each: known[each] for each in given.environments or known}
        found = compare(given.experiments, chosen, data, folder)
    return int(any(len(digests) > 1 for digests in found.values()))


if __name__ == "__main__":
    sys.exit(main())
