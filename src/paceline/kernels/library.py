"""The compiled library of kernels: its name, where it is found, and whether an experiment uses it,
or TensorFlow's kernels. `build` compiles it.

A library fits one set of sources, one TensorFlow and one set of compiler flags; its name contains a
hash of them. It is looked for in the package (a wheel contains one), then in the cache, which has
one for each compiler. A training never compiles. This module does not import TensorFlow."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import stat
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.storage.files import replacing
from paceline.storage.locations import cache_folder

if TYPE_CHECKING:
    from paceline.experiment.experiment import Experiment

KERNEL_FLAGS = ("-O3", "-ffp-contract=off", "-std=c++17", "-fPIC")
OPS_FLAGS = ("-O1", "-w", "-std=c++17", "-fPIC", "-DEIGEN_MAX_ALIGN_BYTES=64")
CPU_NEEDS = {"x86_64": ("avx2", "fma"), "aarch64": ()}
"""The instruction sets that the kernels need beyond what every CPU of a machine type has: flags of
the compiler, and names in /proc/cpuinfo."""
ARITHMETIC = 1
"""Version of docs/arithmetic.md. A change of any bit raises it."""
FASTER_WITH_AVX512 = {
    "GenuineIntel 6": ("85", "106", "108", "143", "173", "174", "207"),
    "AuthenticAMD 26": ("2", "17", "68"),
}
"""Families and models of CPUs that compute two products of 512 bits at once: Intel's servers since
Skylake, and Zen 5 in servers and desktops. A Zen 4 needs two cycles for each and gains nothing."""
AVX512 = "PACELINE_AVX512"
"""Environment variable: 1 or 0 decides in place of this table."""
DISABLE = "PACELINE_NO_KERNELS"
"""Environment variable: if it is set, the library counts as missing. For tests, and for machines
that report instructions which they lack."""


def choose_kernels(experiment: Experiment, uses_gpus: bool) -> str:
    """Return own or tensorflow. Raise UserError if own is asked for and cannot be used."""
    unfit, unavailable = _why_unfit(experiment, uses_gpus), why_unavailable()
    if experiment.kernels == "own" and (unfit or unavailable):
        what_to_do = f"{unfit}; pass" if unfit else f"{unavailable}; or pass"
        raise UserError(f"kernels is own, but {what_to_do} --kernels tensorflow")
    return "tensorflow" if unfit or unavailable or experiment.kernels == "tensorflow" else "own"


def exact_name(kernels: str) -> str:
    """Return the name of kernels that compute the same bits. It has the sources of Paceline's, not
    how they were compiled: also with TensorFlow's kernels, they compute sums and updates."""
    fixed = f", arithmetic {ARITHMETIC} ({sources_digest()[:16]})"
    return kernels if why_unavailable() else f"{kernels}{fixed}"


@functools.cache
def sources_digest() -> str:
    """Return a digest of the C++ files."""
    digest = hashlib.sha256()
    for name, content in read_sources().items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def why_slow(experiment: Experiment, kernels: str) -> str:
    """Return why training is slower here than with other kernels or on other CPUs; else ""."""
    if kernels == "own" and experiment.precision == "bfloat16" and not uses_avx512_bf16():
        text = "without the CPU's AVX512_BF16, --precision bfloat16 is slower than float32"
        return f"{text}; its bits are the same as with it"
    if kernels == "own" or experiment.kernels == "tensorflow" or _why_unfit(experiment, False):
        return ""
    return f"training uses TensorFlow's kernels, which are slower: {why_unavailable()}"


def _why_unfit(experiment: Experiment, uses_gpus: bool) -> str:
    if uses_gpus:
        return "they are for CPUs, and there is a GPU"
    if experiment.precision == "float16":
        return "they are for float32 and bfloat16, and precision is float16"
    if experiment.threads_per_replica > 1:
        return "they use one thread, and threads-per-replica is more"
    return ""


def why_unavailable() -> str:
    """Return why the kernels cannot be used on this machine, with what to do; empty if they can."""
    if os.environ.get(DISABLE):
        return f"{DISABLE} is set: unset it"
    if platform.machine() not in CPU_NEEDS:
        return f"they are for {' and '.join(CPU_NEEDS)}, and this machine is {platform.machine()}"
    if missing := missing_instructions():
        return f"this CPU has no {missing}: they need one with AVX2 and FMA"
    if find_library() is None:
        build = "run python -m paceline.kernels (it needs g++)"
        if built := _built():
            return f"{built[-1]} can be changed by other users: remove it, and {build}"
        return f"they are not built for TensorFlow {tensorflow_version()}: {build}"
    return ""


def missing_instructions() -> str:
    """Return the instruction sets that this CPU lacks; empty if it has all."""
    return " and ".join(sorted(set(CPU_NEEDS.get(platform.machine(), ())) - cpu_flags()))


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of this CPU, as Linux names them."""
    return frozenset(f"{cpu_fields().get('flags')} {cpu_fields().get('Features')}".split())


@functools.cache
def cpu_fields() -> dict[str, str]:
    """Return what Linux says about the first CPU."""
    text = ""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    pairs = (line.partition(":")[::2] for line in text.splitlines())
    return {name.strip(): value.strip() for name, value in pairs}


def uses_avx512() -> bool:
    """Return whether products use AVX-512, which changes their speed and no bit."""
    if not {"avx512f", *CPU_NEEDS["x86_64"]} <= cpu_flags():
        return False
    of_cpu = (cpu_fields().get(name, "") for name in ("vendor_id", "cpu family"))
    gains = cpu_fields().get("model") in FASTER_WITH_AVX512.get(" ".join(of_cpu), ())
    return os.environ.get(AVX512, str(int(gains))) == "1"


def uses_avx512_bf16() -> bool:
    """Return whether the CPU's instructions for bfloat16 are used, which changes no bit."""
    return "avx512_bf16" in cpu_flags() and os.environ.get(AVX512) != "0"


@functools.cache
def library_name(machine: str = platform.machine()) -> str:
    """Return the name of the library for these sources, this TensorFlow and a machine type."""
    flags = (machine, CPU_NEEDS.get(machine), KERNEL_FLAGS, OPS_FLAGS)
    text = f"{tensorflow_version()} {flags} {sources_digest()}"
    return f"paceline-kernels-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"


def read_sources() -> dict[str, bytes]:
    """Return the C++ files by name, in a fixed order. The package may be in a zip file."""
    found = files("paceline.kernels").joinpath("cc").iterdir()
    texts = {file.name: file for file in found if file.name.endswith((".cc", ".h"))}
    return {name: texts[name].read_bytes() for name in sorted(texts)}


def tensorflow_version() -> str:
    for package in ("tensorflow-cpu", "tensorflow"):
        with suppress(PackageNotFoundError):
            return version(package)
    return "none"


def find_library() -> Path | None:
    """Return the library's file, or None if there is none that fits.

    If the package is in a zip file, its library is unpacked into the cache first, under a hash of
    its content: another one may have been built here.
    """
    packaged = files("paceline.kernels").joinpath("lib", library_name())
    if isinstance(packaged, Path) and packaged.is_file():
        return packaged
    if packaged.is_file():
        content = packaged.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:16]
        unpacked = library_cache(f"unpacked-{digest}", library_name())
        if not unpacked.is_file() or unpacked.read_bytes() != content:
            put(content, unpacked)
        return unpacked
    safe = [path for path in _built() if is_private(path)]
    return safe[-1] if safe else None


def _built() -> list[Path]:
    return sorted(cache_folder().glob(f"kernels/*/{library_name()}"))


def is_private(path: Path) -> bool:
    """Return whether nobody but this user can change a file of the cache: its code is run."""
    found = [each.stat() for each in (path, *path.parents[:3])]
    return all(f.st_uid in (0, os.getuid()) and not f.st_mode & stat.S_IWOTH for f in found)


def library_cache(folder: str, name: str) -> Path:
    """Return where the cache keeps a library of a compiler, or from a zip file."""
    return cache_folder() / "kernels" / folder / name


def put(content: bytes, target: Path) -> None:
    """Write a file, whole or not at all. Several processes may do it at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as file:
        file.write(content)
