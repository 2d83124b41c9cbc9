"""Training on a real Spark cluster: a master and two workers."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import (
    SOON_S,
    TIMEOUT_S,
    WEIGHTS,
    Program,
    paceline,
    program,
    result_of,
    wait_until,
    write_own_code,
)
from paceline.experiment.experiment import Experiment
from paceline.job import Job
from spark_runs import (
    OWN_PYTHON,
    SMALL,
    SPARK_TIMEOUT_S,
    TWO_SLOTS,
    digest_of,
    on_spark,
    spark_master,  # noqa: F401
    train,
)

pytestmark = pytest.mark.timeout(5 * TIMEOUT_S)


@contextmanager
def waiting_training(folder: Path, *flags: str) -> Iterator[Program]:
    """A training that stands still after its first block until it is disturbed."""
    write_own_code(folder)
    waits = ("--run-dir", "run", "--actions", "own.py:wait_for_a_signal")
    with program("train", "smoke", *waits, *flags, cwd=folder) as running:
        wait_until(
            lambda: (folder / "reached").exists() or not running.is_running(), SPARK_TIMEOUT_S
        )
        assert running.is_running(), running.wait()
        yield running


def test_two_tasks_give_the_bits_of_one_process_though_an_executor_is_killed(
    uninterrupted: Path, tmp_path: Path, master: str
) -> None:
    with waiting_training(tmp_path, "--workers", "2", *on_spark(master, *TWO_SLOTS)) as running:
        assert len(running.workers()) == 2, "they run on the executors, which were told the mark"
        executors = running.find("CoarseGrainedExecutorBackend")
        assert len(executors) == 2
        os.kill(executors[1], signal.SIGKILL)
        ended = running.wait(SPARK_TIMEOUT_S)
    assert ended.code == 0, ended
    assert "2 workers" in ended.out
    assert re.search(r"worker \d failed: its executor on host \S+ is gone; ", ended.out), ended.out
    assert "starting 2 again from the last checkpoint" in ended.out
    assert "resuming at step 1 of 24" in ended.out, ended.out  # from the memory of the other worker
    assert ended.err == "", "what Spark says is in its log, not between the lines of the progress"
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert (tmp_path / "run" / "worker-1.log").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "flags", "conf"),
    [
        ("4", WEIGHTS, ("spark.cores.max=4", "spark.executor.cores=1")),
        ("6", ("--replicas", "8", "--epochs", "1"), ()),
    ],
)
def test_several_tasks_give_the_same_bits_as_one_process(
    workers: str, flags: tuple[str, ...], conf: tuple[str, ...], tmp_path: Path, master: str
) -> None:
    where = on_spark(master if conf else "local-cluster[2,3,512]", *conf)
    one = digest_of(tmp_path, "one", *flags)
    assert digest_of(tmp_path, "several", *flags, "--workers", workers, *where) == one


@pytest.mark.long
def test_ctrl_c_saves_and_leaves_no_process_on_any_executor(
    uninterrupted: Path, tmp_path: Path, master: str
) -> None:
    with waiting_training(tmp_path, "--workers", "2", *on_spark(master, *TWO_SLOTS)) as running:
        os.killpg(running.pid, signal.SIGINT)
        ended = running.wait(SPARK_TIMEOUT_S)
        running.wait_until_gone(SOON_S)
    assert ended.code == 130, ended
    assert ended.err == "stopped by SIGINT; the same command continues from here\n"
    assert result_of(tmp_path / "run")["finished"] is False
    assert digest_of(tmp_path, "run") == result_of(uninterrupted)["state_sha256"], "elsewhere"


@pytest.mark.long
def test_a_killed_driver_leaves_no_process_on_any_executor(tmp_path: Path, master: str) -> None:
    with waiting_training(tmp_path, "--workers", "2", *on_spark(master, *TWO_SLOTS)) as running:
        assert len(running.workers()) == 2
        os.kill(running.pid, signal.SIGKILL)
        wait_until(lambda: not running.workers(), SOON_S, "workers are left")
        running.wait_until_gone(2 * SOON_S)


@pytest.mark.slow
def test_a_killed_java_process_is_one_line_and_the_run_continues(
    uninterrupted: Path, tmp_path: Path
) -> None:
    with waiting_training(tmp_path, *on_spark("local[1]")) as running:
        (java,) = running.find("org.apache.spark.deploy.SparkSubmit")
        os.kill(java, signal.SIGKILL)
        ended = running.wait(SPARK_TIMEOUT_S)
        running.wait_until_gone(SOON_S)
    assert ended.code == 1, ended
    assert len(ended.err.splitlines()) == 1, ended.err
    assert "paceline: Spark's Java process is gone" in ended.err
    assert digest_of(tmp_path, "run") == result_of(uninterrupted)["state_sha256"], "elsewhere"


@pytest.mark.long
def test_spark_submit_trains_with_its_own_settings(
    uninterrupted: Path, tmp_path: Path, master: str
) -> None:
    script = paceline("spark-script", cwd=tmp_path).out.strip()
    conf = [word for setting in (*SMALL, *TWO_SLOTS) for word in ("--conf", setting)]
    binaries = Path(sys.executable).parent
    submit = (str(binaries / "spark-submit"), "--master", master, *conf, script)
    # spark-submit finds its own files on the PATH
    environment = {"PATH": f"{binaries}:{os.environ['PATH']}"} | OWN_PYTHON
    flags = ("train", "smoke", "--workers", "2", "--run-dir", "run")
    with program(*flags, cwd=tmp_path, command=submit, environment=environment) as running:
        ended = running.wait(SPARK_TIMEOUT_S)
    assert ended.code == 0, ended
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert not (tmp_path / "run" / "spark.log").exists()


IN_A_SESSION = """
import json
import paceline
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
place = paceline.Place(on="spark", workers=2)
found = [
    paceline.train("smoke", place=place, run=paceline.Run(run_dir=name), progress=False)
    for name in ("one", "two")
]
digests = [result.state_sha256 for result in found]
json.dump([spark.range(5).count(), *digests], open("found.json", "w"))
"""


@pytest.mark.long
def test_a_session_that_already_runs_is_used_again_and_again_and_left_running(
    uninterrupted: Path, tmp_path: Path
) -> None:
    (tmp_path / "twice.py").write_text(IN_A_SESSION)
    ended = paceline(
        cwd=tmp_path,
        command=(sys.executable, str(tmp_path / "twice.py")),
        timeout_s=SPARK_TIMEOUT_S,
        environment=OWN_PYTHON,
    )
    assert ended.code == 0, ended.err
    digest = result_of(uninterrupted)["state_sha256"]
    assert json.loads((tmp_path / "found.json").read_text()) == [5, digest, digest]


@pytest.mark.long
def test_executors_whose_python_has_no_paceline_get_the_drivers(
    uninterrupted: Path, tmp_path: Path, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their Python has every other package: a .pth file adds a folder, but not its .pth files."""
    venv.create(tmp_path / "venv", symlinks=True)
    python, (packages,) = (
        tmp_path / "venv/bin/python",
        (tmp_path / "venv").glob("lib/python*/site-packages"),
    )
    (packages / "others.pth").write_text(str(Path(np.__file__).parents[1]))
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = subprocess.run(
        [python, "-c", "import numpy, paceline"],
        capture_output=True,
        text=True,
        env=alone,
        cwd=tmp_path,
    )
    assert "No module named 'paceline'" in found.stderr
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    flags = ("--workers", "2", *on_spark(master, *TWO_SLOTS))
    assert digest_of(tmp_path, "run", *flags) == result_of(uninterrupted)["state_sha256"]


def test_pyspark_has_the_private_names_that_paceline_uses() -> None:
    """If an upgrade removes one, `places.spark.session` is the only file to change."""
    from pyspark import SparkContext, java_gateway

    assert SparkContext._active_spark_context is None
    assert hasattr(SparkContext, "_gateway")
    assert list(inspect.signature(java_gateway.launch_gateway).parameters) == [
        "conf",
        "popen_kwargs",
    ]


@pytest.mark.slow
def test_too_few_slots_are_told(tmp_path: Path) -> None:
    wait = "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures=1"
    ended = train(tmp_path, "run", "--workers", "4", *on_spark("local[2]", wait))
    assert ended.code == 2
    assert ended.err == (
        "paceline: the stage requires more slots than Spark has; "
        "use fewer --workers, or Spark more cores\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_host_that_does_not_see_the_data_is_named(tmp_path: Path) -> None:
    ended = train(
        tmp_path, "run", "--data.source", "cifar10", "--data.dir", "nowhere", *on_spark("local[1]")
    )
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 1
    assert f"cannot read the data folder {tmp_path / 'nowhere'}; " in ended.err
    assert ended.err.startswith("paceline: host ")


def test_a_host_that_does_not_share_the_run_folder_is_named(tmp_path: Path) -> None:
    from paceline.places.spark.task import find_problem

    job, proof = Job(Experiment()), tmp_path / ".proof"
    told = find_problem(job, "", str(proof), "h7")
    assert told.startswith(f"host h7, which has the chief, does not share {tmp_path} with the ")
    proof.touch()
    assert not find_problem(job, "", str(proof), "h7")


class ToDriver:
    """Notes what a task sends to its driver."""

    def __init__(self) -> None:
        self.heard = list[str]()

    def send(self, message: Any) -> None:
        self.heard.append(message.text)

    def write(self, line: bytes) -> None:
        self.heard.append(line.decode())


def test_what_a_worker_logs_before_a_message_is_sent_before_it() -> None:
    from paceline.places.spark.task import _pass_on

    for _ in range(50):
        (messages, message), (log, text), driver = os.pipe(), os.pipe(), ToDriver()
        passing = threading.Thread(target=_pass_on, args=(messages, log, driver))
        passing.start()
        os.write(message, b"one\ntw")
        os.write(text, b"Traceback")
        os.write(message, b"o\n")
        os.close(message)
        os.write(text, b"the end")
        os.close(text)
        passing.join(SOON_S)
        assert not passing.is_alive()
        assert [each for each in driver.heard if "\n" in each] == ["one\n", "two\n"]
        logged = "".join(each for each in driver.heard if "\n" not in each)
        assert logged == "Tracebackthe end"
        before = "".join(driver.heard[: driver.heard.index("two\n")])
        assert "Traceback" in before


@pytest.mark.parametrize(
    ("flags", "environment", "complaint"),
    [
        ((), {"JAVA_HOME": "old"}, "Spark needs Java 17 or newer"),
        (("--spark.conf", "cores"), {}, "write it as spark.KEY=VALUE"),
    ],
    ids=["no Java", "no KEY=VALUE"],
)
def test_what_a_person_can_put_right_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    environment: dict[str, str],
    complaint: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ended = train(tmp_path, "run", "--on", "spark", *flags)
    assert ended.code == 2
    assert complaint in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
