"""Both sides of a remote run folder: what is visible when, and who may change it."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Experiment
from paceline.extras.evaluator import _Evaluator
from paceline.job import Job, Run
from paceline.messages import Message, Warn
from paceline.run_folder.finding import all_runs
from paceline.run_folder.remote_run import RemoteRun
from paceline.storage import lease, remote
from paceline.storage.lease import read_lease
from paceline.storage.lock import LeaseLost
from paceline.storage.remote import StorageFault, Store


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take over without a wait, as if the holder had been stopped for long enough."""
    monkeypatch.setattr(lease, "LOCK_TIMEOUT_S", 0.0)


@pytest.fixture(params=["s3", "gs"])
def either(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty folder on S3, and on Google Cloud Storage."""
    folder = str(request.getfixturevalue("folder"))
    if request.param == "s3":
        return folder
    request.getfixturevalue("google")
    return "gs://bucket/run"


def chief_of(url: str, local: Path, store: Store | None = None) -> RemoteRun:
    local.mkdir()
    run = RemoteRun(store or Store(url), local, Store(url))
    run.lock("", lambda message: None)
    run.pull()
    return run


def write(local: Path, *names: str, content: Any = 0) -> None:
    for name in names:
        (local / name).parent.mkdir(exist_ok=True)
        (local / name).write_text(json.dumps(content))


def test_a_chief_that_wakes_up_after_its_successor_finished_changes_nothing(
    either: str, tmp_path: Path, at_once: None
) -> None:
    frozen = chief_of(either, tmp_path / "frozen")
    write(tmp_path / "frozen", "config.json", "result.json", content={"step": 49})
    frozen.publish()
    successor = chief_of(either, tmp_path / "successor")
    write(tmp_path / "successor", "result.json", content={"step": 400})
    successor.publish()
    successor.unlock()
    before, _ = read_lease(Store(either))
    assert (before.epoch, before.held) == (2, False)

    write(tmp_path / "frozen", "result.json", content={"step": 50})
    for action in (frozen.publish, frozen.beat, frozen.holder.check):
        with pytest.raises(LeaseLost, match=f"pid {os.getpid()} on host .* has taken over"):
            action()
    frozen.unlock()
    assert read_lease(Store(either))[0] == before
    assert json.loads(Store(either).read(before.files["result.json"]) or b"") == {"step": 400}
    assert set(Store(either).files()) == {"lease.json", *before.files.values()}


def test_the_next_chief_removes_what_earlier_ones_uploaded_and_no_lease_names(
    folder: str, tmp_path: Path
) -> None:
    run = chief_of(folder, tmp_path / "first")
    write(tmp_path / "first", "config.json", "events/a")
    run.publish()
    named = set(run.holder.lease.files.values())
    run.unlock()
    for name in ("attempts/1/9/result.json", "attempts/3/1/result.json"):
        Store(folder).put(name, b"a request of a killed process, or a chief that comes next")
    run = chief_of(folder, tmp_path / "second")
    assert (run.holder.lease.epoch, set(run.holder.lease.files.values())) == (2, named)
    kept = {"lease.json", "events/a", "attempts/3/1/result.json", *named}
    assert set(Store(folder).files()) == kept
    run.unlock()


def test_a_missing_or_damaged_lease_is_reported_and_nothing_is_overwritten(
    folder: str, tmp_path: Path
) -> None:
    run = chief_of(folder, tmp_path / "local")
    write(tmp_path / "local", "config.json")
    run.publish()
    run.unlock()
    for content in (b"", b"[]", b'{"epoch": "x"}', b'{"epoch": 1, "files": {"a": "../b"}}'):
        Store(folder).put("lease.json", content)
        with pytest.raises(UserError, match=r"lease\.json is damaged; restore it"):
            RemoteRun(Store(folder), tmp_path / "reader").pull()
    Store(folder).remove("lease.json")
    for number, act in enumerate((RemoteRun.pull, lambda run: run.lock("", lambda message: None))):
        with pytest.raises(UserError, match=r"it has attempts/.* but no lease\.json"):
            act(RemoteRun(Store(folder), tmp_path / f"{number}"))
    Store(folder).put("lease.json", b'{"format": 9}')
    with pytest.raises(UserError, match="written by a newer Paceline; update Paceline"):
        RemoteRun(Store(folder), tmp_path / "reader").pull()


def test_a_folder_with_files_but_no_lease_is_left_alone(folder: str, tmp_path: Path) -> None:
    Store(folder).put("holiday/image.jpg", b"x")
    with pytest.raises(UserError, match=r"is not a run folder: it has holiday/image\.jpg"):
        chief_of(folder, tmp_path / "local")
    assert set(Store(folder).files()) == {"holiday/image.jpg"}


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how often each method of a Store is still to fail."""
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.0)
    failures = dict.fromkeys(("read_versioned", "files", "get", "put"), 0)

    def failing(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if failures[name]:
                failures[name] -= 1
                raise StorageFault(f"{name}: it is away")
            return method(*arguments)

        return call

    for name in failures:
        monkeypatch.setattr(Store, name, failing(name, getattr(Store, name)))
    return failures


def test_passing_faults_of_storage_are_tried_again(
    folder: str, tmp_path: Path, flaky: dict[str, int]
) -> None:
    said: list[Message] = []
    flaky |= {"read_versioned": 1, "files": 2}
    run = chief_of(f"{folder}/one", tmp_path / "local")
    run._send = said.append
    flaky["put"] = 2
    write(tmp_path / "local", "config.json")
    run.publish()
    assert said == [Warn("put: it is away; trying again in 0 s")] * 2
    run.unlock()
    flaky |= {"read_versioned": 1, "files": 1, "get": 2}
    RemoteRun(Store(f"{folder}/one"), tmp_path / "watched").refresh()
    assert (tmp_path / "watched" / "config.json").read_text() == "0"
    flaky["files"] = 2
    assert [run.where for run in all_runs(folder)] == [f"{folder}/one"]
    assert not any(flaky.values())


def test_a_lasting_fault_of_storage_is_one_for_which_the_workers_start_again(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaky: dict[str, int]
) -> None:
    monkeypatch.setattr(remote, "PATIENCE_S", -1.0)
    flaky["files"] = 100
    with pytest.raises(PassingFault, match="it is away"):
        RemoteRun(Store(folder), tmp_path).refresh()
    said: list[Message] = []
    job = Job(Experiment(), run=Run(run_dir=folder))
    evaluator = _Evaluator(job, said.append, threading.Event())
    evaluator._refreshed()
    assert said == [Warn("files: it is away; the evaluator tries again")]
