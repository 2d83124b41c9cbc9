"""The wheel: with the compiled kernels, or without a compiler one for any platform."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from helpers import Ended, once_per_session, paceline, result_of
from newcomer import ROOT, UV, build_wheel, install, uv
from paceline.kernels import compiler, library

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("wheel"),  # one after the other, in one environment
    pytest.mark.skipif(not UV, reason="uv is not installed"),
]
needs_compiler = pytest.mark.skipif(
    not compiler.find_compiler() or bool(library.missing_instructions()), reason="no C++ compiler"
)


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a virtual environment in which only Paceline's dependencies are installed."""

    def make(folder: Path) -> None:
        uv("venv", "--python", sys.executable, str(folder / "venv"))
        wheel, _ = build_wheel(folder, PATH="/nonexistent", CXX="")
        install(folder, f"{wheel}[cpu]", "--constraint", str(ROOT / "constraints.txt"))
        uv("pip", "uninstall", "--python", str(folder / "venv"), "paceline")

    return once_per_session(tmp_path_factory, "empty-venv", make)


def train(venv: Path, folder: Path, *flags: str) -> Ended:
    """Train without a compiler, outside of the repository and with an empty cache."""
    environment = {
        "PATH": str(venv / "bin"),
        "CXX": "",
        "PYTHONPATH": "",
        "HOME": str(folder / "home"),
        "PACELINE_CACHE": str(folder / "cache"),
    }
    command = (str(venv / "bin" / "paceline"),)
    flags = ("train", "smoke", "--run-dir", "run", *flags)
    return paceline(*flags, cwd=folder, command=command, environment=environment)


@needs_compiler
def test_a_wheel_has_the_kernels_and_trains_with_them_where_there_is_no_compiler(
    empty: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    wheel, _ = build_wheel(tmp_path)
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    libraries = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert libraries == [f"paceline/kernels/lib/{library.library_name()}"]
    install(empty, str(wheel), "--no-deps", "--reinstall")
    ended = train(empty / "venv", tmp_path)
    assert ended.code == 0, ended
    assert "slower" not in ended.out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["kernels"] == "own"
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_without_a_compiler_a_line_says_that_the_wheel_has_no_kernels_and_it_trains_without(
    empty: Path, tmp_path: Path
) -> None:
    wheel, said = build_wheel(tmp_path, PATH="/nonexistent", CXX="")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    told = {line for line in said.splitlines() if "The wheel has no kernels" in line}
    assert len(told) == 1
    assert "there is no C++ compiler" in told.pop()
    install(empty, str(wheel), "--no-deps", "--reinstall")
    ended = train(empty / "venv", tmp_path, "--stop-at", "1")
    assert ended.code == 0, ended
    line = "training uses TensorFlow's kernels, which are slower: they are not built for TensorFlow"
    assert line in ended.out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["kernels"] == "tensorflow"
