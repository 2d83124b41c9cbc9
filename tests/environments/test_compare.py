"""Every environment gives an experiment the same digest, and the comparison can fail."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from compare import EXACT, Environment, compare, environments, made_data

from kernel_checks import needs_kernels

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


def other_pythons() -> dict[str, Environment]:
    """PACELINE_PYTHONS lists Pythons that have Paceline, as NAME=PYTHON, with spaces between."""
    listed = os.environ.get("PACELINE_PYTHONS", "").split()
    return {name: Environment(path) for name, path in (each.split("=", 1) for each in listed)}


@pytest.mark.skipif(not other_pythons(), reason="PACELINE_PYTHONS is not set")
def test_every_python_and_machine_type_ends_at_the_same_digest(tmp_path: Path) -> None:
    chosen = {"native": Environment()} | other_pythons()
    assert all(shutil.which(each.python) for each in chosen.values()), chosen
    assert len(compare(["smoke"], chosen, {}, tmp_path)["smoke"]) == 1
