"""The run folder: its experiment, who may write it, and that no file is ever half written."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.run_folder import folder as run_folder
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import unsealed

EXPERIMENT = Experiment(seed=3)
FACTS = {"train": 50000, "test": 10000, "image_shape": (32, 32, 3)}

HOLD_THE_LOCK = """
import sys, time
from paceline.run_folder.folder import RunFolder
RunFolder(sys.argv[1]).lock()
print("locked", flush=True)
time.sleep(60)
"""


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.open(EXPERIMENT, FACTS)
    return folder


def test_building_one_touches_no_disk(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_new_folder_records_experiment_data_versions_and_format(run: RunFolder) -> None:
    config = json.loads((run.path / "config.json").read_text())
    assert config["experiment"] == EXPERIMENT.to_json()
    assert config["data"] == {"train": 50000, "test": 10000, "image_shape": [32, 32, 3]}
    assert config["format"] == run_folder.FORMAT
    assert {"python", "paceline", "keras", "numpy"} <= config["versions"].keys()
    assert run.experiment() == EXPERIMENT
    assert run.events.is_dir()
    assert run.checkpoints.is_dir()


def test_a_field_newer_than_the_folder_takes_its_default(run: RunFolder) -> None:
    config = unsealed(json.loads((run.path / "config.json").read_text()))
    del config["experiment"]["precision"]
    (run.path / "config.json").write_text(json.dumps(config))
    assert run.open(EXPERIMENT, FACTS) == []


@pytest.mark.parametrize(
    "content",
    ["", '{"format": 1, "exp', "[]", "{}", '{"format": 1, "experiment": {"data": 3}}', "\0\0"],
)
def test_a_damaged_config_is_one_clear_line(run: RunFolder, content: str) -> None:
    (run.path / "config.json").write_text(content)
    with pytest.raises(UserError, match="damaged") as error:
        run.open(EXPERIMENT, FACTS)
    assert "config.json" in one_line(error)


def test_a_newer_format_is_one_clear_line(run: RunFolder) -> None:
    config = unsealed(json.loads((run.path / "config.json").read_text()))
    (run.path / "config.json").write_text(json.dumps(config | {"format": run_folder.FORMAT + 1}))
    with pytest.raises(UserError, match="newer Paceline") as error:
        run.open(EXPERIMENT, FACTS)
    one_line(error)


def test_a_folder_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for use in (RunFolder(tmp_path).lock, lambda: RunFolder(tmp_path).open(EXPERIMENT, FACTS)):
        with pytest.raises(UserError, match=r"thesis\.tex but no config"):
            use()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_worker_logs_may_come_before_the_config(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.log("worker 0").write_text("hello")
    run.lock()
    assert run.open(EXPERIMENT, FACTS) == []
    run.unlock()


def test_a_path_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make") as error:
        RunFolder(tmp_path / "file").open(EXPERIMENT, FACTS)
    one_line(error)


def test_who_locks_a_folder_removes_what_a_killed_process_did_not_finish(run: RunFolder) -> None:
    unfinished = (run.path / ".result.json.a.tmp", run.checkpoints / ".step-00000002.b.tmp")
    for path in unfinished:
        path.write_bytes(b"half")
    run.lock()
    run.unlock()
    assert not any(path.exists() for path in unfinished)


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, str(run.path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(
                UserError, match=f"another process \\(pid {holder.pid} on host .+\\) is training in"
            ) as error:
                run.lock(wait_s=0.2)
            one_line(error)
        finally:
            holder.send_signal(signal.SIGKILL)
    run.lock()
    with pytest.raises(UserError, match=f"pid {os.getpid()}"):
        RunFolder(run.path).lock(wait_s=0)
    run.unlock()
    RunFolder(run.path).lock(wait_s=0)


def test_a_result_is_read_as_written_and_strict_json(run: RunFolder) -> None:
    assert run.read_result() is None
    run.write_result(
        {
            "finished": True,
            "step": np.int64(7),
            "test_accuracy": np.float32(0.5),
            "loss": float("nan"),
        }
    )
    assert run.read_result() == {"finished": True, "step": 7, "test_accuracy": 0.5, "loss": None}


def test_one_flipped_bit_in_the_result_or_the_config_is_one_clear_line(run: RunFolder) -> None:
    result = {"finished": True, "step": 7, "test_accuracy": 0.75}
    run.write_result(result)
    whole = (run.path / "result.json").read_bytes()
    for bit in range(8 * len(whole)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        (run.path / "result.json").write_bytes(content)
        # a flip in white space or in the name of the checksum changes no number
        with suppress(UserError):
            assert (run.read_result() or {}).items() >= result.items(), bit
    (run.path / "result.json").write_bytes(whole.replace(b"0.75", b"0.95"))
    with pytest.raises(UserError, match="computes it again from the last checkpoint"):
        run.read_result()
