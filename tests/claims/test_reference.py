"""`reference/reference.py`, a second implementation in NumPy, ends at the digest of Paceline."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers import result_of
from in_process import paceline_here

REFERENCE = Path(__file__).parents[2] / "reference" / "reference.py"


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--steps", "2"), id="two-steps", marks=pytest.mark.slow),
        pytest.param(
            ("--steps", "2", "--precision", "bfloat16"), id="bfloat16", marks=pytest.mark.slow
        ),
        pytest.param((), id="smoke", marks=pytest.mark.long),
    ],
)
def test_the_reference_ends_at_the_digest_of_paceline(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    trained = paceline_here("train", "smoke", *flags, "--run-dir", "run", cwd=tmp_path)
    assert trained.code == 0, trained
    command = [sys.executable, str(REFERENCE), str(tmp_path / "run" / "config.json")]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert result_of(tmp_path / "run")["state_sha256"] in found
    assert "import tensorflow" not in REFERENCE.read_text()
    assert len(REFERENCE.read_text().splitlines()) <= 500
