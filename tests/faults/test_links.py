"""Links in a run folder are refused: they would let others choose which file is overwritten."""

import os
from pathlib import Path

import pytest

from helpers import write_own_code
from in_process import paceline_here
from paceline.errors import UserError
from paceline.run_folder.checkpoints import list_steps
from paceline.run_folder.code_copies import keep_copy
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.records import RecordFile
from paceline.storage.files import read_run_file
from paceline.storage.lock import FileLock

NAMES = ("lock", "worker-0.log", "starts.jsonl", "metrics.jsonl", "events", "checkpoints", "code")


@pytest.mark.parametrize("name", [*NAMES, "config.json", "result.json"])
@pytest.mark.parametrize("dangling", [False, True])
def test_training_refuses_a_link_in_its_folder_and_writes_nothing(
    tmp_path: Path, name: str, dangling: bool
) -> None:
    precious, run = tmp_path / "precious", tmp_path / "run"
    if not dangling:
        precious.write_text("mine")
    run.mkdir()
    (run / name).symlink_to(precious)
    ended = paceline_here("train", "smoke", "--run-dir", str(run), cwd=tmp_path)
    assert ended.code == 2, ended
    assert f"run/{name} is a link, and a run folder cannot contain links; replace" in ended.err
    assert precious.read_text() == "mine" if not dangling else not precious.exists()
    assert os.listdir(run) == [name]


def test_a_link_that_comes_later_is_not_followed_either(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_text("mine\n")
    link.symlink_to(precious)
    for use in (
        lambda: FileLock(link, "training").acquire(),
        lambda: RecordFile(link).append({"step": 1}),
        lambda: RecordFile(link).read(),
        lambda: read_run_file(link),
        lambda: list_steps(link),
    ):
        with pytest.raises(UserError, match="is a link, and a run folder cannot contain links"):
            use()
    assert precious.read_text() == "mine\n"


@pytest.mark.parametrize("link", ["code", "code/model.build", "code/model.build/own.py"])
def test_a_copy_of_code_goes_through_no_link(
    tmp_path: Path, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_own_code(tmp_path)
    precious, run = tmp_path / "precious", tmp_path / "run"
    for folder in (precious / "model.build", (run / link).parent):
        folder.mkdir(parents=True)
    theirs = [precious / "own.py", precious / "model.build/own.py"]
    for each in theirs:
        each.write_text("mine")
    (run / link).symlink_to(theirs[0] if link.endswith(".py") else precious)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"run/{link} is a link, and a run folder cannot contain"):
        keep_copy(run, "model.build", f"{own.name}:build")
    assert [each.read_text() for each in theirs] == ["mine", "mine"]


def test_a_link_to_a_run_folder_is_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    run = RunFolder(tmp_path / "run")
    run.lock()
    run.append_start(0, "local", 1)
    run.unlock()
    assert len(RunFolder(tmp_path / "disk").starts.read()) == 1


def test_pipes_and_folders_in_place_of_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(UserError, match=f"{name} is not a regular file, or"):
            read_run_file(tmp_path / name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_strangers_file_is_refused_where_everyone_can_write(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("planted")
    os.chown(file, 12345, -1)
    assert read_run_file(file) == b"planted", "whoever can write here may share the run"
    tmp_path.chmod(0o777)
    with pytest.raises(UserError, match="belongs to another user; remove it"):
        read_run_file(file)
    os.chown(tmp_path, 12345, -1)
    assert read_run_file(file) == b"planted", "the folder is that user's"
