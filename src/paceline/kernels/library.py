"""The compiled library of kernels: its sources, its name, where it is found, and how it is built.

A library fits one set of sources, one TensorFlow and one set of compiler flags; its name contains a
hash of them. It is looked for in the package (a wheel contains one), then in the cache. A training
never compiles anything. This module does not import TensorFlow.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

from paceline.errors import UserError
from paceline.run_folder.storage import cache_folder

SOURCES = ("winograd.cc", "im2col.cc", "batch_norm.cc", "ops.cc")
HEADERS = ("simd.h", "winograd.h", "im2col.h", "batch_norm.h")
KERNEL_FLAGS = ("-O3", "-mavx2", "-mfma", "-ffp-contract=off", "-std=c++17", "-fPIC")
OPS_FLAGS = ("-O1", "-w", "-std=c++17", "-fPIC", "-DEIGEN_MAX_ALIGN_BYTES=64")
CPU_NEEDS = {"avx2", "fma"}
DISABLE = "PACELINE_NO_KERNELS"
"""Environment variable: if it is set, the library counts as missing. For tests, and for machines
that report instructions which they lack."""


def why_unavailable() -> str:
    """Return why the kernels cannot be used on this machine, with what to do; empty if they can."""
    if os.environ.get(DISABLE):
        return f"{DISABLE} is set"
    if missing := CPU_NEEDS - cpu_flags():
        return f"this CPU has no {' and '.join(sorted(missing))}"
    if find_library() is None:
        return "they are not built: run python -m paceline.kernels (it needs g++)"
    return ""


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of this CPU, as Linux names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(
        next((line.split(":")[1].split() for line in lines if line.startswith("flags")), ())
    )


@functools.cache
def library_name() -> str:
    """Return the file name of the library that fits these sources and this TensorFlow."""
    digest = hashlib.sha256(f"{tensorflow_version()} {KERNEL_FLAGS} {OPS_FLAGS}".encode())
    for name in (*SOURCES, *HEADERS):
        digest.update(_source(name))
    return f"paceline-kernels-{digest.hexdigest()[:16]}.so"


def _source(name: str) -> bytes:
    return files("paceline.kernels").joinpath("cc", name).read_bytes()


def tensorflow_version() -> str:
    for package in ("tensorflow-cpu", "tensorflow"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "none"


def find_library() -> Path | None:
    """Return the library's file, or None if there is none that fits.

    If the package is in a zip file, the library is unpacked into the cache first.
    """
    kept = cache_folder() / "kernels" / library_name()
    packaged = files("paceline.kernels").joinpath("lib", library_name())
    if isinstance(packaged, Path) and packaged.is_file():
        return packaged
    if kept.is_file():
        return kept
    if packaged.is_file():
        with as_file(packaged) as file:
            _put(file, kept)
        return kept
    return None


def _put(file: Path, target: Path) -> None:
    """Copy a file, whole or not at all. Several processes may do it at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(file, temporary)
    os.replace(temporary, target)


def build_library(folder: Path | None = None) -> Path:
    """Put the library into `folder`, by default the package itself, and return its file.

    It is compiled unless the cache has it. If the package cannot be written, the cache keeps it.
    """
    kept = cache_folder() / "kernels" / library_name()
    if not kept.is_file():
        _build(kept)
    own = Path(str(files("paceline.kernels"))) / "lib"
    target = (folder or own) / library_name()
    try:
        _put(kept, target)
    except OSError:
        return kept
    return target


def _build(target: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise UserError(
            "there is no C++ compiler; install g++ (Debian: apt-get install g++), or set CXX"
        )
    spec = find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("TensorFlow is not installed; install it with pip install 'paceline[cpu]'")
    tensorflow = Path(next(iter(spec.submodule_search_locations)))
    with tempfile.TemporaryDirectory(prefix="paceline-kernels-") as work:
        for name in (*SOURCES, *HEADERS):
            Path(work, name).write_bytes(_source(name))
        _compile(compiler, tensorflow, Path(work))
        _put(Path(work, "library.so"), target)


def _compile(compiler: str, tensorflow: Path, work: Path) -> None:
    """Compile all sources at once, and link them."""
    commands = []
    for name in SOURCES:
        flags = (
            (*OPS_FLAGS, f"-isystem{tensorflow / 'include'}") if name == "ops.cc" else KERNEL_FLAGS
        )
        commands.append([compiler, *flags, "-c", name, "-o", f"{name}.o"])
    running = [
        subprocess.Popen(command, cwd=work, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    for process in running:
        _check(process)
    objects = [f"{name}.o" for name in SOURCES]
    link = [
        compiler,
        "-shared",
        *objects,
        f"-L{tensorflow}",
        "-l:libtensorflow_framework.so.2",
        "-o",
        "library.so",
    ]
    _check(subprocess.Popen(link, cwd=work, stderr=subprocess.PIPE, text=True))


def _check(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode:
        first = next(
            (line for line in errors.splitlines() if "error" in line), errors.strip()[:200]
        )
        raise UserError(f"the compiler cannot build the kernels: {first}")


def main() -> int:
    """Build the library: `python -m paceline.kernels [FOLDER]`."""
    try:
        if missing := CPU_NEEDS - cpu_flags():
            print(
                f"kernels: this CPU has no {' and '.join(sorted(missing))}; TensorFlow's are used"
            )
            return 0
        print(f"kernels: {build_library(*(Path(each) for each in sys.argv[1:2]))}")
    except UserError as error:
        print(
            f"kernels: {error}; TensorFlow's own kernels are used, which are slower",
            file=sys.stderr,
        )
        return 2
    return 0
