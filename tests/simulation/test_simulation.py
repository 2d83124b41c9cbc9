"""The simulation itself: its histories hold, a seed is one history, and a mistake is found."""

import subprocess
import sys
from pathlib import Path

import pytest

from .history import play
from .mutants import MUTANTS

ROOT = Path(__file__).parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_every_invariant_holds_in_hundreds_of_histories() -> None:
    for seed in range(1, 401):
        played = play(seed)
        assert not played.violation, f"seed {seed}: {played.violation}"


def test_a_seed_is_one_history() -> None:
    histories = [play(seed).lines for seed in (7, 8, 7)]
    assert histories[0] == histories[2] != histories[1]


def test_a_mistake_in_the_decision_code_is_found() -> None:
    found = run("tests.simulation.mutants", "--only", "an idle worker looks busy")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "without a limit" in found.stdout


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_invariant_holds_in_thousands_of_histories() -> None:
    played = run("tests.simulation", "--first", "100000", "--minutes", "10")
    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.hours
@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_every_mistake_is_found_within_ten_minutes() -> None:
    assert len(MUTANTS) >= 20
    found = run("tests.simulation.mutants", "--minutes", "10")
    assert found.returncode == 0, found.stdout + found.stderr
