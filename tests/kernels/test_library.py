"""The library of kernels: built once for each compiler, found without one, and clearly missed."""

import os
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers import TIMEOUT_S
from kernel_checks import needs_kernels
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.kernels import compiler, library, ops

COMPILER = """#!/bin/sh
echo "$@" >> "$0.calls"
[ "$1" = --version ] && { echo "c++ (of a test) VERSION"; exit; }
[ "$1" = -dumpmachine ] && { echo "MACHINE-linux-gnu"; exit; }
while [ $# -gt 1 ]; do [ "$1" = -o ] && echo VERSION > "$2"; shift; done
"""


def run_build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline.kernels", str(folder / "lib")],
        env=os.environ | {"PACELINE_CACHE": str(folder / "cache")} | environment,
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
    )


def write_compiler(file: Path, version: str, machine: str = platform.machine()) -> str:
    file.write_text(COMPILER.replace("VERSION", version).replace("MACHINE", machine))
    file.chmod(0o755)
    return str(file)


def calls(compiler: str) -> int:
    """How often it compiled or linked."""
    return sum(" -o " in line for line in Path(f"{compiler}.calls").read_text().splitlines())


def test_it_is_compiled_once_for_each_compiler(tmp_path: Path) -> None:
    """With compilers that only write their version into the library."""
    old = write_compiler(tmp_path / "old", "1.0")
    new = write_compiler(tmp_path / "new", "2.0")
    for own in (old, old, new, old):
        done = run_build(tmp_path, CXX=own)
        assert done.returncode == 0, done.stderr
        (built,) = (tmp_path / "lib").iterdir()
        assert built.read_text() == ("1.0\n" if own == old else "2.0\n")
    kernels = [name for name in library.read_sources() if re.search(r"(?<!ops)\.cc$", name)]
    needed = len(kernels) + 3  # the operations are one more unit, and all are linked with one
    assert (calls(old), calls(new)) == (needed, needed)
    cached = [file.parent.name for file in (tmp_path / "cache" / "kernels").rglob("*.so")]
    assert sorted(cached) == ["c++-of-a-test-1.0", "c++-of-a-test-2.0"]


def test_a_compiler_for_arm_builds_a_library_that_only_arm_loads(tmp_path: Path) -> None:
    compiler = write_compiler(tmp_path / "cross", "1.0", "aarch64")
    done = run_build(tmp_path, CXX=compiler)
    assert done.returncode == 0, done.stderr
    (built,) = (tmp_path / "lib").iterdir()
    assert built.name == library.library_name("aarch64") != library.library_name("x86_64")
    assert "-mavx2" not in Path(f"{compiler}.calls").read_text()


def test_a_compiler_for_a_machine_without_kernels_is_one_line(tmp_path: Path) -> None:
    done = run_build(tmp_path, CXX=write_compiler(tmp_path / "cross", "1.0", "riscv64"))
    assert done.returncode == 2
    assert "compiles for riscv64; the kernels are for x86_64 and aarch64" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_machine_without_kernels_uses_tensorflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    reason = "they are for x86_64 and aarch64, and this machine is riscv64"
    assert library.why_unavailable() == reason
    assert library.choose_kernels(Experiment(), uses_gpus=False) == "tensorflow"


def test_its_name_changes_with_sources_tensorflow_and_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget() -> None:
        library.sources_digest.cache_clear()
        library.library_name.cache_clear()

    def name() -> str:
        forget()
        return library.library_name()

    sources = library.read_sources() | {"ops.cc": b"int x;"}
    changes = {"read_sources": lambda: sources, "tensorflow_version": lambda: "2.22.0"}
    names = {name()}
    for attribute, value in (changes | {"KERNEL_FLAGS": ("-O2",)}).items():
        with monkeypatch.context() as patch:
            patch.setattr(library, attribute, value)
            names.add(name())
    forget()
    assert len(names) == 4


def test_without_a_compiler_one_line_says_what_to_do(tmp_path: Path) -> None:
    done = run_build(tmp_path, PATH="/nonexistent", CXX="")
    assert done.returncode == 2
    assert "apt-get install g++" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@needs_kernels
def test_without_a_compiler_a_library_that_is_here_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert compiler.build_library() == library.find_library()


def test_a_compiler_that_fails_or_is_not_there_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'winograd.cc:1: error: no such thing' >&2\nexit 1\n")
    broken.chmod(0o755)
    for own, told in ((broken, "no such thing"), (tmp_path / "none", "does not run")):
        done = run_build(tmp_path, CXX=str(own))
        assert done.returncode == 2
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "lib").glob("*"))


@needs_kernels
def test_a_package_in_a_zip_file_has_its_library_unpacked_once(tmp_path: Path) -> None:
    """As Spark sends it to executors."""
    from paceline.places.spark.session import write_package

    archive = write_package(tmp_path / "paceline.zip")
    program = "from paceline.kernels import library; print(library.find_library())"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONPATH": archive, "PACELINE_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        found = Path(done.stdout.strip())
        assert found.is_relative_to(tmp_path / "cache")
        with zipfile.ZipFile(archive) as package:
            packed = package.read(f"paceline/kernels/lib/{found.name}")
        assert found.read_bytes() == packed
    assert len(list((tmp_path / "cache").rglob("*.so"))) == 1


def make_cpu_without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    flags = library.cpu_flags() - set(missing)
    monkeypatch.setattr(library, "cpu_flags", lambda: flags)


@pytest.mark.parametrize("missing", [("avx2",), ("fma",), ("avx2", "fma")])
def test_a_cpu_without_avx2_or_fma_uses_tensorflows_kernels_and_says_so(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    make_cpu_without(monkeypatch, *missing)
    reason = f"this CPU has no {' and '.join(missing)}: they need one with AVX2 and FMA"
    assert library.why_unavailable() == reason
    assert library.choose_kernels(Experiment(), uses_gpus=False) == "tensorflow"
    slow = f"training uses TensorFlow's kernels, which are slower: {reason}"
    assert library.why_slow(Experiment(), "tensorflow") == slow
    with pytest.raises(UserError, match="or pass --kernels tensorflow"):
        library.choose_kernels(replace(Experiment(), kernels="own"), uses_gpus=False)
    assert compiler.main() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "TensorFlow's are used" in line


CASCADE_LAKE, ZEN_4, ZEN_5 = "GenuineIntel 6 85", "AuthenticAMD 25 17", "AuthenticAMD 26 2"


@pytest.mark.parametrize(
    ("cpu", "flags", "given", "expected"),
    [
        (CASCADE_LAKE, "avx2 fma avx512f", None, True),
        (CASCADE_LAKE, "avx2 fma", "1", False),
        (CASCADE_LAKE, "avx2 fma avx512f", "0", False),
        (ZEN_4, "avx2 fma avx512f", None, False),
        (ZEN_4, "avx2 fma avx512f", "1", True),
        (ZEN_5, "avx2 fma avx512f", None, True),
    ],
)
def test_avx512_is_used_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, cpu: str, flags: str, given: str | None, expected: bool
) -> None:
    fields = dict(zip(("vendor_id", "cpu family", "model"), cpu.split(), strict=True))
    monkeypatch.setattr(library, "cpu_fields", lambda: fields)
    monkeypatch.setattr(library, "cpu_flags", lambda: frozenset(flags.split()))
    monkeypatch.delenv(library.AVX512, raising=False)
    if given:
        monkeypatch.setenv(library.AVX512, given)
    assert library.uses_avx512() == expected


def test_bfloat16_is_slow_where_the_cpu_has_no_instruction_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(library.AVX512, raising=False)
    experiment = replace(Experiment(), precision="bfloat16")
    monkeypatch.setattr(library, "cpu_flags", lambda: frozenset(["avx2", "fma", "avx512_bf16"]))
    assert library.why_slow(experiment, "own") == ""
    monkeypatch.setattr(library, "cpu_flags", lambda: frozenset(["avx2", "fma"]))
    assert "bfloat16 is slower than float32" in library.why_slow(experiment, "own")
    assert library.why_slow(Experiment(), "own") == ""


def test_the_reason_why_kernels_are_unavailable_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "library_name", lambda: "paceline-kernels-of-others.so")
    assert "python -m paceline.kernels" in library.why_unavailable()
    monkeypatch.setenv(library.DISABLE, "1")
    assert library.why_unavailable() == f"{library.DISABLE} is set: unset it"


def test_a_library_that_others_can_change_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "library_name", lambda: "paceline-kernels-of-a-test.so")
    built = library.library_cache("g++", "paceline-kernels-of-a-test.so")
    library.put(b"code", built)
    assert library.find_library() == built
    for each in (built, built.parent, built.parents[1], built.parents[2]):
        mode = each.stat().st_mode
        each.chmod(mode | 0o002)
        assert library.find_library() is None
        assert f"{built} can be changed by other users: remove it" in library.why_unavailable()
        each.chmod(mode)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert (library.find_library() is None) == (built.stat().st_uid != 0)


def test_a_wheel_can_be_built_where_no_dependency_is_installed() -> None:
    """The build backend imports the package in an environment with setuptools only."""
    program = "import sys; sys.path.insert(0, sys.argv[1]); import paceline.kernels.compiler"
    source = str(Path(compiler.__file__).parents[2])
    command = [sys.executable, "-S", "-E", "-c", program, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr


def test_an_image_gets_the_backend_that_builds_paceline() -> None:
    root = Path(__file__).parents[2]
    backend = tomllib.loads((root / "pyproject.toml").read_text())["build-system"]["build-backend"]
    copied = [line for line in (root / "Dockerfile").read_text().splitlines() if "COPY" in line]
    assert any(f"{backend}.py" in line.split() for line in copied)
    assert f"!{backend}.py" in (root / ".dockerignore").read_text().splitlines()


@needs_kernels
def test_a_gpu_has_tensorflows_kernels() -> None:
    assert library.choose_kernels(Experiment(), uses_gpus=True) == "tensorflow"
    assert library.choose_kernels(Experiment(), uses_gpus=False) == "own"


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is loaded."""
    ops.load.cache_clear()
    yield
    ops.load.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_a_damaged_library_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "library.so"
    damaged.write_bytes(b"not a library")
    monkeypatch.setattr(ops, "find_library", lambda: damaged)
    with pytest.raises(UserError, match="remove the file"):
        ops.load()


@pytest.mark.usefixtures("fresh")
def test_loading_them_on_a_cpu_without_avx2_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    make_cpu_without(monkeypatch, "avx2")
    with pytest.raises(UserError, match="this CPU has no avx2"):
        ops.load()
