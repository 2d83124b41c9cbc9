"""`paceline doctor`."""

import re
import sys
from pathlib import Path

import pytest

from helpers import paceline
from paceline.extras import doctor


@pytest.mark.slow
def test_doctor_tells_of_every_part_and_leaves_nothing(tmp_path: Path) -> None:
    ended = paceline("doctor", "--run-dir", str(tmp_path / "later" / "runs"), cwd=tmp_path)
    found = dict(re.findall(r"^(?:good|slow|broken) +([^:]+): (.*)$", ended.out, re.MULTILINE))
    assert list(found) == ["versions", "TensorFlow", "kernels", "cores", "run folder"]
    assert re.match(r"2\.21\.\d+, ", found["TensorFlow"])
    assert str(tmp_path) in found["run folder"]
    assert ended.code == ("broken" in ended.out)
    assert not list(tmp_path.iterdir())


def test_a_run_folder_that_cannot_be_written_is_broken() -> None:
    assert doctor.check_run_folder(Path("/proc/nowhere/runs")).state == "broken"


def test_a_tensorflow_that_cannot_be_imported_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setitem(sys.modules, "keras", sys.modules[__name__])
    finding = doctor.check_tensorflow()
    assert (finding.state, finding.what) == ("broken", "TensorFlow")
    assert "pip install" in finding.text


@pytest.mark.parametrize(("reason", "state"), [("", "good"), ("this CPU has no avx2", "slow")])
def test_missing_kernels_are_slow_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, reason: str, state: str
) -> None:
    monkeypatch.setattr(doctor, "why_unavailable", lambda: reason)
    finding = doctor.check_kernels()
    assert finding.state == state
    assert reason in finding.text
