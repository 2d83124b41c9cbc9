"""Faults of a disk or a network that pass: nothing good is taken for damaged, and nothing ends."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import result_of
from in_process import paceline_here
from paceline.cli.commands import main
from paceline.errors import PassingFault, UserError
from paceline.maths.state import State, StateLayout
from paceline.run_folder import checkpoint_file
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.listing import list_runs
from paceline.storage import files
from report_runs import make_run

LAYOUT = StateLayout({"params": (("a", (3,)),)})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAUSES_S", (0.0, 0.0, 0.0))


def some_state(step: int) -> State:
    return State(step, {"params": np.arange(3, dtype=np.float32) + step})


def fail(
    monkeypatch: pytest.MonkeyPatch, which: Path, code: int, times: float = float("inf")
) -> list[int]:
    """Let reading a file fail so many times; returns a list that counts."""
    read, opened, failures = Path.read_bytes, open, list[int]()

    def check(path: Any) -> None:
        if str(path) == str(which) and len(failures) < times:
            failures.append(code)
            raise OSError(code, os.strerror(code), str(path))

    def failing_open(path: Any, *arguments: Any, **settings: Any) -> Any:
        check(path)
        return opened(path, *arguments, **settings)

    def failing_read(path: Path) -> bytes:
        check(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing_read)
    monkeypatch.setattr("builtins.open", failing_open)
    return failures


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_checkpoint_that_cannot_be_read_for_a_moment_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    checkpoints = Checkpoints(tmp_path, LAYOUT)
    checkpoints.save(some_state(1))
    newest = checkpoints.save(some_state(2))
    failures = fail(monkeypatch, newest, code, times=3)
    assert checkpoints.latest().step == 2
    assert len(failures) == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOENT])
def test_a_checkpoint_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    checkpoints = Checkpoints(tmp_path, LAYOUT)
    checkpoints.save(some_state(1))
    fail(monkeypatch, checkpoints.save(some_state(2)), code)
    with pytest.raises(PassingFault, match="step-00000002"):
        checkpoints.latest()
    with pytest.raises(PassingFault, match="step-00000002"):
        checkpoints.load(2)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT])
def test_the_best_checkpoint_is_neither_pruned_nor_passed_over_if_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    checkpoints = Checkpoints(tmp_path, LAYOUT, keep=1)
    best = checkpoints.save(some_state(1), metric=0.9)
    with monkeypatch.context() as patch:
        fail(patch, best, code)
        for step in (2, 3, 4):
            checkpoints.save(some_state(step), metric=0.5)
        if code == errno.EIO:
            with pytest.raises(PassingFault, match="step-00000001"):
                checkpoints.best()
    assert best.exists()
    checkpoints.save(some_state(5), metric=0.5)
    assert checkpoints.steps() == [1, 5]
    assert checkpoints.best().step == 1


def test_a_checkpoint_that_a_training_removes_meanwhile_is_replaced_by_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, LAYOUT)
    old = checkpoints.save(some_state(1))
    read = checkpoint_file.read_run_file

    def read_late(path: Path) -> bytes:
        if path == old and old.exists():
            checkpoints.save(some_state(2))
            old.unlink()
        return read(path)

    monkeypatch.setattr(checkpoint_file, "read_run_file", read_late)
    assert checkpoints.latest().step == 2


def test_a_full_disk_says_how_much_is_needed_and_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"the disk is full: [\d,]{3,} bytes are needed, [\d,]+ ar"):
        Checkpoints(tmp_path, LAYOUT).save(some_state(1))


def test_predictions_that_cannot_be_read_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "one", records=8, examples=20, side=4)
    fail(monkeypatch, run / "evaluation.npz", errno.EIO)
    assert main(["report", str(run), "-o", str(tmp_path / "page.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"paceline: cannot read {run / 'evaluation.npz'}: Input/output error"


def test_runs_are_listed_while_files_vanish_and_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(tmp_path / name, records=8, examples=20, side=4) for name in ("one", "two")]
    listed, times = Path.iterdir, [each.stat().st_mtime for each in runs[0].iterdir()]
    vanished = (runs[0] / ".config.json.1.tmp", runs[1] / ".result.json.1.tmp")

    def late(folder: Path) -> Any:
        return iter([*listed(folder), *vanished])

    monkeypatch.setattr(Path, "iterdir", late)
    assert [run.state for run in list_runs(tmp_path, "name")] == ["finished", "finished"]
    assert list_runs(tmp_path, "name")[0].changed == pytest.approx(max(times))
    stat = os.stat

    def stale(path: Any, *arguments: Any, **settings: Any) -> Any:
        if Path(path) == runs[1] / "result.json":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat(path, *arguments, **settings)

    monkeypatch.setattr(os, "stat", stale)
    whole, failed = list_runs(tmp_path, "name")
    assert (whole.state, failed.state) == ("finished", "unreadable")
    assert "Stale file handle" in failed.note


def test_a_finished_run_with_a_damaged_result_computes_it_anew(
    uninterrupted: Path, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted, tmp_path / "run")
    whole = result_of(tmp_path / "run")
    text = (tmp_path / "run" / "result.json").read_text()
    (tmp_path / "run" / "result.json").write_text(text.replace('"finished"', '"finishes"'))
    ended = paceline_here("train", "smoke", "--run-dir", "run", cwd=tmp_path)
    assert ended.code == 0, ended
    assert "result.json is damaged" in ended.out + ended.err
    found = result_of(tmp_path / "run")
    whole.pop("images_per_second")
    assert found.pop("images_per_second") is None, "nothing was trained"
    assert found == whole
