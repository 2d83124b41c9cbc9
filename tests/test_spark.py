"""Training, converting and predicting on a real Spark cluster: a standalone master and two workers, started from PySpark's own files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import (
    TIMEOUT_S,
    Ended,
    once_per_session,
    paceline,
    program,
    result_of,
    wait_until,
    write_own_code,
)
from paceline.errors import UserError
from paceline.places.spark_session import check_java

pytest.importorskip("pyspark", reason="PySpark is not installed")
try:
    check_java()
except UserError as reason:
    pytest.skip(str(reason), allow_module_level=True)

SPARK_TIMEOUT_S = 2 * TIMEOUT_S
SMALL = ("spark.executor.memory=512m", "spark.ui.enabled=false", "spark.executorEnv.PACELINE_TEST_MARK={mark}")
TWO_SLOTS = ("spark.cores.max=2", "spark.executor.cores=1")
WEIGHTS = ("--sync.method", "weights", "--sync.every", "3", "--epochs", "1.25")


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a cluster that all processes of pytest-xdist share; it ends with the one that began them."""

    def make(folder: Path) -> None:
        pid = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        command = [sys.executable, str(Path(__file__).with_name("spark_cluster.py")), str(folder), str(pid)]
        cluster = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda: (folder / "url").exists() or cluster.poll() is not None)

    return (once_per_session(tmp_path_factory, "spark-cluster", make) / "url").read_text()


def on_spark(master: str, *conf: str) -> tuple[str, ...]:
    return ("--on", "spark", "--spark.master", master, "--spark.conf", *SMALL, *conf)


def train(folder: Path, name: str, *flags: str) -> Ended:
    return paceline("train", "smoke", "--run-dir", name, *flags, cwd=folder, timeout_s=SPARK_TIMEOUT_S)


def digest_of(folder: Path, name: str, *flags: str) -> str:
    ended = train(folder, name, *flags)
    assert ended.code == 0, ended
    return result_of(folder / name)["state_sha256"]


def memory_of(pid: int) -> int:
    """Peak resident size in bytes; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def has_loaded_tensorflow(pid: int) -> bool:
    try:
        return "_pywrap_tensorflow" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def test_two_tasks_give_the_same_bits_as_one_process_under_a_small_driver(
    uninterrupted: Path, tmp_path: Path, master: str
) -> None:
    peaks, loaded, seen = dict[int, int](), set[int](), set[int]()
    with program(
        "train", "smoke", "--run-dir", "run", "--workers", "2", *on_spark(master, *TWO_SLOTS), cwd=tmp_path
    ) as running:
        while running.is_running():
            drivers = [running.pid, *running.find("PythonGatewayServer"), *running.find("pyspark-shell")]
            peaks |= {pid: max(peaks.get(pid, 0), memory_of(pid)) for pid in drivers}
            loaded |= {pid for pid in drivers if has_loaded_tensorflow(pid)}
            seen |= set(running.workers())
            time.sleep(0.2)
        ended = running.wait(SPARK_TIMEOUT_S)
    assert ended.code == 0, ended
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert "2 workers" in ended.out
    assert len(seen) == 2, "the workers ran on the executors"
    assert not loaded
    assert len(peaks) >= 2
    assert sum(peaks.values()) < 1e9, peaks
    assert "spark" not in ended.err.lower(), "what Spark says is in its log, not between the lines of the progress"
    assert (tmp_path / "run" / "worker-1.log").exists()
