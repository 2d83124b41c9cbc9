"""Who may write a run folder: locks on a disk, leases on S3, and what shares a cache."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from helpers import Ended, program, result_of, wait_until, write_own_code
from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Data, Experiment
from paceline.job import Job, Run
from paceline.messages import Message, Transfer, Warn
from paceline.runs.finding import all_runs
from paceline.runs.folder import DRIVER_FILE, RunFolder
from paceline.storage import data_cache as remote_data
from paceline.storage import keeper, layout, lease, retry, transfer
from paceline.storage.backends import StorageFault, Store
from paceline.storage.conditional import swap
from paceline.storage.lease import read_lease
from paceline.storage.lock import FileLock, LeaseLost, lock_file
from paceline.storage.remote import RemoteRun


def begin(run: RunFolder) -> Any:
    command = run.begun()
    command.__enter__()
    return command


def fail(command: Any) -> None:
    error = UserError("the settings are wrong")
    assert not command.__exit__(UserError, error, None)


# Local folders


def test_a_command_that_fails_removes_its_new_folder_only_if_no_other_command_uses_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    fail(begin(RunFolder(path)))
    assert not path.exists()

    first, second = begin(RunFolder(path)), begin(RunFolder(path))
    fail(first)  # the second has not locked the folder yet
    chief = RunFolder(path)
    chief.lock()
    second.__exit__(None, None, None)
    chief.check_lease()
    with pytest.raises(UserError, match="is training in"):
        RunFolder(path).lock(wait_s=0.0)
    chief.unlock()


def test_a_command_that_fails_leaves_the_folder_to_a_chief_that_no_command_started(
    tmp_path: Path,
) -> None:
    command = begin(RunFolder(tmp_path / "run"))
    chief = RunFolder(tmp_path / "run")
    chief.lock()
    fail(command)
    chief.check_lease()
    assert chief.is_locked()
    chief.unlock()


def test_what_a_killed_driver_left_goes_with_the_last_command(tmp_path: Path) -> None:
    """Found by `make chaos`: a killed driver of Spark, then another command that ended the run."""
    first, second = begin(RunFolder(tmp_path)), begin(RunFolder(tmp_path))
    (tmp_path / f"{DRIVER_FILE}0").touch()
    first.__exit__(None, None, None)
    assert (tmp_path / f"{DRIVER_FILE}0").exists()  # it may be the second's
    second.__exit__(None, None, None)
    assert not list(tmp_path.iterdir())


def test_a_lock_on_a_file_that_was_removed_keeps_nobody_out_and_is_not_taken(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    held = lock_file(path, fcntl.LOCK_EX, 0.0)
    assert held is not None
    got: list[int | None] = []
    waiting = threading.Thread(target=lambda: got.append(lock_file(path, fcntl.LOCK_EX, 20.0)))
    waiting.start()
    threading.Event().wait(0.3)
    path.unlink()
    os.close(held)
    waiting.join()
    assert got[0] is not None
    assert os.path.samestat(os.fstat(got[0]), path.stat())
    os.close(got[0])


def test_whether_a_folder_is_locked_is_known_on_nfs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def nfs_flock(handle: int, kind: int) -> None:
        """NFS makes byte-range locks of these: exclusive ones need a file open for writing."""
        reads_only = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if kind & fcntl.LOCK_EX and reads_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(handle, kind)

    monkeypatch.setattr(fcntl, "flock", nfs_flock)
    run = RunFolder(tmp_path / "run")
    assert not run.is_locked()
    run.lock()
    assert RunFolder(tmp_path / "run").is_locked()
    run.unlock()
    assert not RunFolder(tmp_path / "run").is_locked()


def test_the_number_of_a_local_lease_grows_and_event_files_have_it(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "events.out.tfevents.0000000004").touch()  # of an older version
    (tmp_path / "config.json").write_text("{}")
    for expected in (5, 6, 7):
        run = RunFolder(tmp_path)
        run.lock()
        assert run.epoch == expected
        run.unlock()


def test_a_worker_whose_chief_was_lost_and_taken_over_may_not_save(tmp_path: Path) -> None:
    lost, successor = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    lost.lock()
    number = lost.epoch
    lost.unlock()
    RunFolder(tmp_path / "run").check_number(number)
    successor.lock()
    successor.unlock()
    with pytest.raises(LeaseLost, match="another command has taken over"):
        RunFolder(tmp_path / "run").check_number(number)


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_chief_whose_folder_is_another_s_now_writes_nothing_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(retry, "PAUSES_S", (0.0, 0.0, 0.0))
    run = RunFolder(tmp_path / "run")
    run.lock()
    run.metrics.append({"step": 1})
    (tmp_path / "run" / "lock").unlink()
    if how == "replaced":
        other = FileLock(tmp_path / "run" / "lock", "training in it")
        other.acquire()
    who = f"pid {os.getpid()} on host .* has taken over" if how == "replaced" else "has removed"
    for write in (
        lambda: run.metrics.append({"step": 2}),
        lambda: run.write_result({"finished": False}),
        lambda: run.predictions.write({}),
        lambda: run.metrics.truncate(0),
    ):
        with pytest.raises(LeaseLost, match=who):
            write()
    assert [record["step"] for record in run.metrics.read()] == [1]
    assert run.read_result() is None


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOENT])
def test_a_lock_that_cannot_be_read_for_a_moment_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As long as it cannot be read, nothing is written."""
    monkeypatch.setattr(retry, "PAUSES_S", (0.0, 0.0, 0.0))
    run, read, times = RunFolder(tmp_path / "run"), Path.read_bytes, 0

    def read_bytes(path: Path) -> bytes:
        nonlocal times
        if path.name == "lock" and times:
            times -= 1
            raise OSError(code, os.strerror(code))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    run.lock()
    times = 3
    run.metrics.append({"step": 1})
    assert times == 0
    RunFolder(tmp_path / "run").check_number(run.epoch)
    times = 100
    kind = LeaseLost if code == errno.ENOENT else PassingFault
    with pytest.raises(kind):
        run.metrics.append({"step": 2})
    with pytest.raises(kind):
        RunFolder(tmp_path / "run").check_number(run.epoch)
    times = 0
    assert [record["step"] for record in run.metrics.read()] == [1]


# Leases on S3


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take over without a wait, as if the holder had been stopped for long enough."""
    monkeypatch.setattr(lease, "LOCK_TIMEOUT_S", 0.0)


def chief_of(url: str, local: Path, store: Store | None = None) -> RemoteRun:
    local.mkdir()
    run = RemoteRun(store or Store(url), local, Store(url, own_connection=True))
    run.lock("", lambda message: None)
    run.pull()
    return run


def write(local: Path, **files: Any) -> None:
    for name, value in files.items():
        (local / f"{name}.json").write_text(json.dumps(value))


def test_a_chief_that_wakes_up_after_its_successor_finished_changes_nothing(
    folder: str, tmp_path: Path, at_once: None
) -> None:
    frozen = chief_of(folder, tmp_path / "frozen")
    write(tmp_path / "frozen", config=1, result={"finished": False, "step": 49})
    frozen.publish()
    successor = chief_of(folder, tmp_path / "successor")
    write(tmp_path / "successor", result={"finished": True, "step": 400})
    successor.publish()
    successor.unlock()
    before = layout.view(Store(folder))

    write(tmp_path / "frozen", result={"finished": False, "step": 50})
    for action in (frozen.publish, frozen.beat, frozen.publish_in_background, frozen.check):
        with pytest.raises(LeaseLost, match=f"pid {os.getpid()} on host .* has taken over"):
            action()
    frozen.unlock()
    assert layout.view(Store(folder)) == before
    assert json.loads(Store(folder).read(before["result.json"].key) or b"")["step"] == 400
    found = read_lease(Store(folder))
    assert found is not None
    assert (found.epoch, found.held) == (2, False)


def test_signs_of_life_go_on_while_an_upload_takes_long(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    class SlowStore(Store):
        def put(self, name: str, content: Path | bytes) -> None:
            begun.set()
            assert goes_on.wait(60)
            super().put(name, content)

    monkeypatch.setattr(keeper, "BEAT_EVERY_S", 0.05)
    monkeypatch.setattr(keeper, "PUBLISH_EVERY_S", 0.05)  # it waits for the upload, beats do not
    said: list[Message] = []
    run = chief_of(folder, tmp_path / "local", SlowStore(folder))
    run._send = said.append
    threads = keeper.Keeper(run, said.append)
    write(tmp_path / "local", config=1)
    threads.start()
    upload = threading.Thread(target=run.publish)
    upload.start()
    assert begun.wait(30)
    first = read_lease(Store(folder))
    assert first is not None

    def has_beaten() -> bool:
        now = read_lease(Store(folder))
        return now is not None and now.beat >= first.beat + 3

    wait_until(has_beaten, 30, "the lease is not renewed during an upload")
    assert any(isinstance(message, Transfer) for message in said)
    assert layout.view(Store(folder)) == {}
    goes_on.set()
    upload.join()
    threads.stop()
    assert set(layout.view(Store(folder))) == {"config.json"}
    run.unlock()


def test_a_run_of_an_older_version_is_read_adopted_and_continued(
    folder: str, tmp_path: Path
) -> None:
    for name in ("config.json", "result.json", "events/events.out.tfevents.0000000003", "ps-0.log"):
        Store(folder).put(name, b"{}")
    assert "result.json" in layout.view(Store(folder))
    run = chief_of(folder, tmp_path / "local")
    assert run.epoch == 4
    write(tmp_path / "local", result=1)
    run.publish()
    run.unlock()
    view = layout.view(Store(folder))
    assert (view["config.json"].key, view["result.json"].key) == (
        "config.json",
        "attempts/4/1/result.json",
    )
    assert "result.json" not in Store(folder).files()
    assert {"events/events.out.tfevents.0000000003", "ps-0.log"} <= set(view)


def test_what_a_killed_chief_uploaded_in_vain_is_removed_by_the_next(
    folder: str, tmp_path: Path, at_once: None
) -> None:
    killed = chief_of(folder, tmp_path / "killed")
    write(tmp_path / "killed", config=1)
    killed.publish()
    write(tmp_path / "killed", result=1)
    killed._upload(["result.json"])  # and then, before it is published, SIGKILL
    assert "attempts/1/2/result.json" in Store(folder).files()
    run = chief_of(folder, tmp_path / "next")
    run.publish()
    assert set(Store(folder).files()) == {"lease.json", "attempts/1/1/config.json"}
    run.unlock()


def test_a_missing_or_damaged_lease_is_reported_and_nothing_is_overwritten(
    folder: str, tmp_path: Path
) -> None:
    run = chief_of(folder, tmp_path / "local")
    write(tmp_path / "local", config=1)
    run.publish()
    run.unlock()
    for content in (b"", b"[]", b'{"epoch": "x"}', b'{"epoch": 1, "files": {"a": "../b"}}'):
        Store(folder).put("lease.json", content)
        with pytest.raises(UserError, match=r"lease\.json is damaged; restore it"):
            layout.view(Store(folder))
    Store(folder).remove("lease.json")
    with pytest.raises(UserError, match=r"has lost its lease\.json"):
        chief_of(folder, tmp_path / "other")


def test_a_conditional_write_is_refused_if_the_file_has_changed_or_is_gone(folder: str) -> None:
    store = Store(folder)
    first = swap(store, "one", b"1", None)
    assert first
    assert swap(store, "one", b"2", None) is None
    second = swap(store, "one", b"2", first)
    assert second
    assert swap(store, "one", b"3", first) is None
    assert store.read("one") == b"2"
    store.remove("one")
    assert swap(store, "one", b"3", second) is None
    assert store.read("one") is None


def test_storage_without_conditional_writes_says_so_and_refuses_what_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    monkeypatch.setattr(lease.time, "sleep", lambda seconds: None)
    url = f"local://{tmp_path}/remote"
    said: list[Message] = []
    first, second = (RemoteRun(Store(url), tmp_path / name) for name in ("first", "second"))
    first.lock("", said.append)
    assert "cannot write conditionally" in "".join(m.text for m in said if isinstance(m, Warn))
    second.lock("", said.append)
    with pytest.raises(LeaseLost, match="has taken over"):
        first.beat()
    assert second.epoch == 2
    second.beat()


def test_passing_faults_of_storage_are_tried_again_when_a_run_is_locked_and_read(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "FIRST_WAIT_S", 0.0)
    Store(folder).put("config.json", b"{}")
    failures = {"read": 1, "files": 2, "get": 2}

    class Flaky(Store):
        def fail(self, name: str) -> None:
            if failures[name]:
                failures[name] -= 1
                raise StorageFault(f"{name}: it is away")

        def files(self) -> Any:
            self.fail("files")
            return super().files()

        def read(self, name: str) -> Any:
            self.fail("read")
            return super().read(name)

        def get(self, *arguments: Any) -> bool:
            self.fail("get")
            return super().get(*arguments)

    local = tmp_path / "local"
    local.mkdir()
    run = RemoteRun(Flaky(folder), local)
    run.lock("", lambda message: None)
    run.pull()
    assert (local / "config.json").read_bytes() == b"{}"
    run.unlock()
    failures |= {"read": 1, "files": 1}
    watched = RemoteRun(Flaky(folder), tmp_path / "watched")
    watched.refresh()
    assert (tmp_path / "watched" / "config.json").exists()
    assert not any(failures.values())


def test_passing_faults_of_storage_are_tried_again_when_runs_are_listed(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "FIRST_WAIT_S", 0.0)
    Store(f"{folder}/one").put("config.json", b"{}")
    listed, failures = Store.files, [1, 1]

    def flaky(store: Store) -> Any:
        if failures:
            failures.pop()
            raise StorageFault("it is away")
        return listed(store)

    monkeypatch.setattr(Store, "files", flaky)
    assert [run.where for run in all_runs(folder)] == [f"{folder}/one"]


def test_a_lasting_fault_of_storage_is_one_for_which_the_workers_start_again(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PATIENCE_S", 0.0)

    def away(store: Store) -> None:
        raise StorageFault("it is away")

    monkeypatch.setattr(Store, "files", away)
    with pytest.raises(PassingFault, match="it is away"):
        RemoteRun(Store(folder), tmp_path).refresh()

    from paceline.extras.evaluator import _refresh

    said: list[Message] = []
    _refresh(RunFolder(folder, tmp_path / "watched"), said.append)
    assert said == [Warn("it is away; the evaluator tries again")]


# Files of others


def test_folder_markers_are_no_files(folder: str) -> None:
    key = folder.removeprefix("s3://bucket/")
    for name in ("", "train/", "train/cat/"):
        boto3.client("s3").put_object(Bucket="bucket", Key=f"{key}/{name}", Body=b"")
    Store(folder).put("train/cat/1.png", b"x")
    assert set(Store(folder).files()) == {"train/cat/1.png"}


def test_the_local_side_keeps_the_logs_of_all_processes(tmp_path: Path) -> None:
    for name in ("chief.log", "ps-0.log", "worker-1.log", "lock", "metrics.jsonl"):
        (tmp_path / name).touch()
    layout.empty(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "chief.log",
        "ps-0.log",
        "worker-1.log",
        "lock",
    }


def test_data_in_use_is_not_changed_by_a_command_that_needs_its_newer_state(folder: str) -> None:
    for number in range(3):
        Store(folder).put(f"class/{number}.png", bytes([number]))
    used = Path(remote_data.local_folder(folder))  # this process uses it until it ends
    remote_data._ready.clear()
    assert Path(remote_data.local_folder(folder)) == used
    Store(folder).put("class/1.png", b"new")
    Store(folder).remove("class/2.png")
    remote_data._ready.clear()
    newer = Path(remote_data.local_folder(folder))
    assert newer != used
    assert {path.name: path.read_bytes() for path in used.glob("class/*")} == {
        f"{number}.png": bytes([number]) for number in range(3)
    }
    assert {path.name: path.read_bytes() for path in newer.glob("class/*")} == {
        "0.png": b"\0",
        "1.png": b"new",
    }
    assert os.path.samestat((used / "class/0.png").stat(), (newer / "class/0.png").stat())


def test_workers_on_ray_get_the_url_of_a_remote_run_folder() -> None:
    from paceline.places.ray import _build_worker_jobs

    job = Job(Experiment(), run=Run(run_dir="s3://bucket/run"))
    (built,) = _build_worker_jobs(job, ("127.0.0.1:1",))
    assert built.run.run_dir == "s3://bucket/run"
    relative = replace(job, run=Run(run_dir="run"))
    assert Path(_build_worker_jobs(relative, ("127.0.0.1:1",))[0].run.run_dir).is_absolute()


def test_an_evaluation_fetches_the_data_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.requests import EvaluateRequest, answer
    from paceline.results import evaluate

    fetched: list[str] = []
    monkeypatch.setattr(evaluate, "bring_data", lambda folder, send: fetched.append(folder))
    monkeypatch.setattr(evaluate, "evaluate_run", lambda *_: SimpleNamespace(to_json=dict))
    experiment = Experiment(data=Data(dir="s3://bucket/data"))
    for request in (EvaluateRequest(), EvaluateRequest(data_dir="elsewhere")):
        answer(Job(experiment, request=request), lambda message: None)
    assert fetched == ["s3://bucket/data", "elsewhere"]


# Through the command line

BUSY_S = 300.0
"""Three starts of TensorFlow one after the other, on a machine that does much else."""


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_a_frozen_chief_that_wakes_up_ends_and_names_its_successor_and_the_run_stays_finished(
    uninterrupted: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_LOCK_TIMEOUT_S", "3")
    write_own_code(tmp_path)
    flags = ("train", "smoke", "--run-dir", folder)
    with program(*flags, "--actions", "own.py:wait_for_a_signal", cwd=tmp_path) as frozen:
        reached = tmp_path / "reached"
        wait_until(lambda: reached.exists() or not frozen.is_running(), BUSY_S)
        stopped = [frozen.pid, *frozen.workers()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache-of-another-host"))
        with program(*flags, cwd=tmp_path) as successor:
            ended: Ended = successor.wait(BUSY_S)
        assert ended.code == 0, ended
        before = layout.view(Store(folder))
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        os.kill(stopped[-1], signal.SIGTERM)  # the action waits for a signal
        woken = frozen.wait(BUSY_S)
    assert woken.code == 2, woken
    assert "has taken over" in woken.err
    assert {n: e for n, e in layout.view(Store(folder)).items() if not layout.is_plain(n)} == {
        name: entry for name, entry in before.items() if not layout.is_plain(name)
    }
    result = json.loads(Store(folder).read(before["result.json"].key) or b"")
    assert result["finished"]
    assert result["state_sha256"] == result_of(uninterrupted)["state_sha256"]
