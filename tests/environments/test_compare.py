"""Every environment gives an experiment the same digest, and the comparison can fail."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from compare import EXACT, Environment, compare, digest, environments, made_data

from helpers import result_of
from kernel_checks import needs_kernels
from newcomer import ROOT, UV, build_wheel, install, uv

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200), needs_kernels]


@pytest.mark.parametrize("name", EXACT)
def test_an_experiment_has_one_digest_on_all_cpus(name: str, tmp_path: Path) -> None:
    found = compare([name], environments(tmp_path), made_data(tmp_path), tmp_path)
    assert len(found[name]) == 1, found


def test_tensorflows_kernels_depend_on_the_cpu(tmp_path: Path) -> None:
    """So the settings have an effect, and equal digests above mean something."""
    known = environments(tmp_path)
    chosen = {name: known[name] for name in ("native", "oneDNN SSE4.1")}
    assert len(compare(["TensorFlow"], chosen, {}, tmp_path)["TensorFlow"]) == 2


def find_python(version: str) -> str:
    """Return a Python of this version, on the PATH or of pyenv; empty if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = filter(None, [shutil.which(f"python{version}")])
    for found in (*on_path, *map(str, pyenv.glob(f"{version}.*/bin/python"))):
        # one of pyenv's is a script, which fails if this version is not chosen
        if not subprocess.run([found, "--version"], capture_output=True).returncode:
            return found
    return ""


@pytest.mark.parametrize("version", ["3.12", "3.13"])
@pytest.mark.skipif(not UV, reason="uv is not installed")
def test_every_python_ends_at_the_same_digest(
    version: str, uninterrupted: Path, tmp_path: Path
) -> None:
    if not (python := find_python(version)):
        pytest.skip(f"no Python {version}")
    wheel, _ = build_wheel(tmp_path)
    uv("venv", "--python", python, str(tmp_path / "venv"))
    install(tmp_path, f"{wheel}[cpu]", "--constraint", str(ROOT / "constraints.txt"))
    other = Environment(str(tmp_path / "venv" / "bin" / "python"), {"PYTHONPATH": ""})
    assert digest("smoke", other, {}, tmp_path) == result_of(uninterrupted)["state_sha256"]


@pytest.mark.skipif("PACELINE_ARM_PYTHON" not in os.environ, reason="PACELINE_ARM_PYTHON is unset")
def test_64_bit_arm_ends_at_the_same_digest(uninterrupted: Path, tmp_path: Path) -> None:
    """The variable names what aarch64.sh has made, or a Python on an ARM machine."""
    arm = Environment(os.environ["PACELINE_ARM_PYTHON"])
    assert digest("smoke", arm, {}, tmp_path) == result_of(uninterrupted)["state_sha256"]
