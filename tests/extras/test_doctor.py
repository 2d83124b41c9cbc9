"""`paceline doctor`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from helpers import paceline
from paceline.extras import doctor


@pytest.mark.slow
def test_doctor_tells_of_every_part_and_leaves_nothing(tmp_path: Path) -> None:
    ended = paceline("doctor", "--run-dir", str(tmp_path / "later" / "runs"), cwd=tmp_path)
    found = dict(re.findall(r"^(?:good|slow|broken) +([^:]+): (.*)$", ended.out, re.MULTILINE))
    assert list(found) == [
        *("versions", "TensorFlow", "devices", "kernels", "cores", "memory"),
        "run folder",
    ]
    assert re.fullmatch(r"2\.21\.\d+, imported in .* s", found["TensorFlow"])
    assert f"MB/s to {tmp_path}" in found["run folder"]
    assert ended.code == ("broken" in ended.out)
    assert not list(tmp_path.iterdir())


def test_a_run_folder_that_cannot_be_written_is_broken() -> None:
    assert doctor.check_run_folder(Path("/proc/nowhere/runs")).state == "broken"


def test_a_tensorflow_that_fails_is_broken_and_one_that_does_not_answer_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "PROBE", "import no_such_module")
    (finding,) = doctor.check_tensorflow()
    assert (finding.state, finding.what) == ("broken", "TensorFlow")
    assert "no_such_module" in finding.text
    timeout = subprocess.TimeoutExpired("python", doctor.TIMEOUT_S)
    monkeypatch.setattr(subprocess, "run", mock.Mock(side_effect=timeout))
    (finding,) = doctor.check_tensorflow()
    assert (finding.state, finding.what) == ("slow", "TensorFlow")


@pytest.mark.parametrize(("reason", "state"), [("", "good"), ("this CPU has no avx2", "slow")])
def test_missing_kernels_are_slow_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, reason: str, state: str
) -> None:
    monkeypatch.setattr(doctor, "why_unavailable", lambda: reason)
    finding = doctor.check_kernels()
    assert finding.state == state
    assert reason in finding.text
