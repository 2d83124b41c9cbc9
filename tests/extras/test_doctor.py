"""`paceline doctor`."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from helpers import paceline
from paceline.extras import doctor


@pytest.mark.slow
def test_doctor_tells_of_every_part_and_leaves_nothing(tmp_path: Path) -> None:
    ended = paceline("doctor", "--run-dir", str(tmp_path / "later" / "runs"), cwd=tmp_path)
    found = dict(
        re.findall(r"^(?:good|slow|broken|absent) +([^:]+): (.*)$", ended.out, re.MULTILINE)
    )
    assert list(found) == [
        "versions",
        "TensorFlow",
        "devices",
        "kernels",
        "cores",
        "memory",
        "ports",
        "Ray",
        "Java",
        "Spark",
        "run folder",
    ]
    assert re.fullmatch(r"2\.21\.\d+, imported in .* s", found["TensorFlow"])
    assert f"MB/s to {tmp_path}" in found["run folder"]
    assert ended.code == ("broken" in ended.out)
    assert not list(tmp_path.iterdir())


def test_doctor_says_what_does_not_answer_and_what_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as there, socket.socket() as gone:
        there.bind(("127.0.0.1", 0))
        there.listen()
        gone.bind(("127.0.0.1", 0))
        good, bad = (f"127.0.0.1:{each.getsockname()[1]}" for each in (there, gone))
        assert doctor.check_ray(good).state == "good"
        ray = doctor.check_ray(bad)
        assert (ray.state, "there is no Ray cluster at" in ray.text) == ("broken", True)
        for address, state in ((good, "good"), (bad, "broken")):
            _, spark = doctor.check_spark(f"spark://{address}")
            assert (spark.what, spark.state) == ("Spark", state)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java, _ = doctor.check_spark("")
    assert (java.what, java.state, "install it" in java.text) == ("Java", "broken", True)
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
