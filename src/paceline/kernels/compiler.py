"""Compiles the library of kernels: by `python -m paceline.kernels`, and into a wheel.

The cache has a folder for each compiler. This module uses the standard library only and does not
import TensorFlow, because a wheel is built where Paceline's dependencies are not installed.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from paceline.errors import UserError
from paceline.kernels.library import (
    CPU_NEEDS,
    KERNEL_FLAGS,
    OPS_FLAGS,
    find_library,
    library_cache,
    library_name,
    missing_instructions,
    put,
    read_sources,
)

TENSORFLOW = "libtensorflow_framework.so.2"


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: CXX, else g++ or clang++; empty if there is none."""
    if given := os.environ.get("CXX"):
        return shlex.split(given)
    found = shutil.which("g++") or shutil.which("clang++")
    return [found] if found else []


def build_library(folder: Path | None = None) -> Path:
    """Put the library into `folder`, by default the package itself, and return its file.

    It is compiled unless the cache has it from this compiler. The package or the cache may be
    read-only, but not both. Without a compiler, a library that is here already will do.
    """
    compiler = find_compiler()
    if not compiler:
        if folder is None and (found := find_library()):
            return found
        raise UserError(
            "there is no C++ compiler; install g++ (Debian: apt-get install g++), or set CXX"
        )
    name = library_name(target_machine(compiler))
    kept = library_cache(_compiler_version(compiler), name)
    content = kept.read_bytes() if kept.is_file() else _compile(compiler)
    target = (folder or Path(str(files("paceline.kernels"))) / "lib") / name
    written = []
    for path in (target, kept):
        with suppress(OSError):
            put(content, path)
            written.append(path)
    if not written:
        raise UserError(f"neither {target.parent} nor the cache {kept.parent} can be written")
    return written[0]


def target_machine(compiler: list[str]) -> str:
    """Return the machine type that a compiler compiles for, such as aarch64."""
    machine = _run([*compiler, "-dumpmachine"], Path.cwd()).split("-")[0].strip()
    if machine not in CPU_NEEDS:
        allowed = " and ".join(CPU_NEEDS)
        raise UserError(f"{compiler[0]} compiles for {machine}; the kernels are for {allowed}")
    return machine


def _compiler_version(compiler: list[str]) -> str:
    """Return the first line of `--version` as a name of a folder, such as g++-Debian-12.2.0-14."""
    line = (_run([*compiler, "--version"], Path.cwd()).splitlines() or ["unknown"])[0]
    return re.sub(r"[^\w.+-]+", "-", line).strip("-.") or "unknown"


def _compile(compiler: list[str]) -> bytes:
    """Compile all sources side by side, link them, and return the library."""
    spec = find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("TensorFlow is not installed; install it with pip install 'paceline[cpu]'")
    tensorflow = Path(next(iter(spec.submodule_search_locations)))
    ops_flags = (*OPS_FLAGS, f"-isystem{tensorflow / 'include'}")
    needs = (f"-m{each}" for each in CPU_NEEDS[target_machine(compiler)])
    kernel_flags = (*KERNEL_FLAGS, *needs)
    with tempfile.TemporaryDirectory(prefix="paceline-kernels-") as folder:
        work, sources = Path(folder), read_sources()
        for name, content in sources.items():
            (work / name).write_bytes(content)
        # As one unit: TensorFlow's headers take most of the time.
        of_ops = [name for name in sources if name.endswith("ops.cc")]
        (work / "all_ops.cc").write_text("".join(f'#include "{name}"\n' for name in of_ops))
        units = [name for name in sources if name.endswith(".cc") and name not in of_ops]
        units.append("all_ops.cc")

        def compile_unit(name: str) -> None:
            flags = ops_flags if name.endswith("ops.cc") else kernel_flags
            _run([*compiler, *flags, "-c", name, "-o", f"{name}.o"], work)

        with ThreadPoolExecutor(len(units)) as pool:
            list(pool.map(compile_unit, units))
        # Linked with an empty library of TensorFlow's name: TensorFlow may be for another machine.
        empty = ("-shared", "-xc++", os.devnull, f"-Wl,-soname,{TENSORFLOW}", "-o", TENSORFLOW)
        _run([*compiler, *empty], work)
        link = ("-Wl,--no-as-needed", TENSORFLOW, "-o", "library.so")
        _run([*compiler, "-shared", *(f"{name}.o" for name in units), *link], work)
        return (work / "library.so").read_bytes()


def _run(command: list[str], folder: Path) -> str:
    """Run a compiler; return its output, or raise the first error that it printed."""
    try:
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"the compiler {command[0]} does not run ({reason}); set CXX") from error
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if "error" in line]
        cause = (lines or [ended.stderr.strip()[:200]])[0]
        raise UserError(f"the compiler cannot build the kernels: {cause}")
    return ended.stdout


def main() -> int:
    """Build the library: `python -m paceline.kernels [FOLDER]`."""
    try:
        if missing := missing_instructions():
            print(f"kernels: this CPU has no {missing}; TensorFlow's are used, which are slower")
            return 0
        print(f"kernels: {build_library(*(Path(each) for each in sys.argv[1:2]))}")
    except UserError as error:
        text = f"kernels: {error}; TensorFlow's own kernels are used, which are slower"
        print(text, file=sys.stderr)
        return 2
    return 0
