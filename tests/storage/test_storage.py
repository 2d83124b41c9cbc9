"""Run folders and data on remote storage: real trainings and faults, with moto's S3 server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from PIL import Image

from helpers import (
    Ended,
    free_addresses,
    free_port,
    paceline,
    program,
    result_of,
    tf_config,
    wait_until,
    write_own_code,
)
from in_process import paceline_here
from paceline.api import functions as api
from paceline.api.functions import Result
from paceline.cli.commands import main
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.runs.finding import all_runs, default_path, existing_run
from paceline.runs.folder import RunFolder
from paceline.storage import data_cache as remote
from paceline.storage import layout
from paceline.storage.backends import Store
from paceline.storage.files import unsealed
from paceline.storage.lease import Lease, read_lease
from paceline.storage.lock import LeaseLost
from paceline.storage.remote import RemoteRun
from s3_server import server

TENSORBOARD = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.main import run_main
run_main()
"""


def another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use another, empty cache."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache-of-another-host"))


def upload(local: Path, url: str) -> None:
    for path in local.rglob("*"):
        if path.is_file() and path.name != "lock":
            Store(url).put(path.relative_to(local).as_posix(), path)


def remote_result(url: str) -> dict[str, Any]:
    content = Store(url).read(layout.view(Store(url))["result.json"].key)
    assert content is not None
    return unsealed(json.loads(content))


def is_held(url: str) -> bool:
    lease = read_lease(Store(url))
    assert lease is not None
    return lease.held


def train(url: str, cwd: Path, *flags: str) -> Ended:
    return paceline("train", "smoke", "--run-dir", url, *flags, cwd=cwd)


def train_here(url: str, cwd: Path, *flags: str) -> Ended:
    return paceline_here("train", "smoke", "--run-dir", url, *flags, cwd=cwd)


def one_line(ended: Ended) -> str:
    assert ended.code == 2, ended
    (line,) = ended.err.splitlines()
    return line


def checkpoints(url: str) -> list[int]:
    names = sorted(layout.view(Store(url)))
    return [int(name[-20:-12]) for name in names if name.startswith("checkpoints/")]


# Run folders


def test_a_stopped_run_resumes_on_another_host_to_the_same_bits_and_tensorboard_shows_all_of_it(
    uninterrupted: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = train_here(folder, tmp_path, "--stop-at", "5")
    assert ended.code == 0, ended
    assert ended.last_line["run_dir"] == folder
    assert checkpoints(folder) == [4, 5]
    assert not is_held(folder)
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sorted(left) == ["lock", "worker-0.log"]

    another_host(tmp_path, monkeypatch)
    ended = train(folder, tmp_path)
    assert ended.code == 0, ended
    assert "resuming at step 5" in ended.out
    assert remote_result(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    files = set(layout.view(Store(folder)))
    checkpoints_there = {name for name in files if name.startswith("checkpoints/")}
    events = {name for name in files if name.startswith("events/")}
    assert checkpoints_there == {f"checkpoints/step-000000{step}.safetensors" for step in (20, 24)}
    assert events == {f"events/events.out.tfevents.000000000{number}" for number in (1, 2)}
    assert files - checkpoints_there - events == {
        "config.json",
        "metrics.jsonl",
        "starts.jsonl",
        "evaluation.npz",
        "result.json",
        "worker-0.log",
    }
    again = train(folder, tmp_path)
    assert (again.code, "this run is finished" in again.out) == (0, True)
    assert not is_held(folder)

    steps = list(Result(24, True, None, None, None, "", folder).history["step"])
    assert (steps, steps[-1]) == (sorted(set(steps)), 24)
    assert [step for step, _ in scalars_of(folder, "loss")] == list(range(1, 25))


def scalars_of(url: str, tag: str) -> list[tuple[int, float]]:
    """Return scalars as TensorBoard's own server shows them, reading from S3."""
    port = free_port()
    command = [
        sys.executable,
        "-c",
        TENSORBOARD,
        "--logdir",
        url,
        "--port",
        str(port),
        "--load_fast",
        "false",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run=events&tag={tag}"

    def ask() -> list[list[float]]:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return []

    try:
        wait_until(lambda: len(ask()) == 24, 60, "TensorBoard does not show 24 steps")
        return [(int(step), value) for _, step, value in ask()]
    finally:
        process.kill()
        process.wait()


class HoldingProxy:
    """Forwards everything to a server until a request for `marked`: of that, it forwards a part."""

    def __init__(self, target: str, marked: bytes) -> None:
        self._target, self._marked = int(target.rpartition(":")[2]), marked
        self.reached = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(
                target=self._pass_on, args=(server, client, False), daemon=True
            ).start()
            threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, watched: bool) -> None:
        held = False
        try:
            while data := source.recv(65536):
                if held:  # the body follows its header: half of a piece goes through
                    target.sendall(data[: len(data) // 2])
                    self.reached.set()
                    return
                target.sendall(data)
                held = watched and self._marked in data
        except OSError:
            pass
        finally:
            if not held:
                target.close()


def test_a_run_killed_during_an_upload_is_taken_over_elsewhere_and_ends_with_the_same_bits(
    uninterrupted: Path, folder: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_LOCK_TIMEOUT_S", "3")
    proxy = HoldingProxy(s3, b"/checkpoints/step-00000012.safetensors")
    with monkeypatch.context() as through_the_proxy:
        through_the_proxy.setenv("AWS_ENDPOINT_URL", proxy.url)
        with program("train", "smoke", "--run-dir", folder, cwd=tmp_path) as running:
            wait_until(lambda: proxy.reached.is_set() or not running.is_running())
            assert proxy.reached.is_set()
            for pid in (running.pid, *running.workers()):
                os.kill(pid, signal.SIGKILL)
            running.wait()
    assert {4, 8} <= set(checkpoints(folder))
    another_host(tmp_path, monkeypatch)
    ended = train(folder, tmp_path)
    assert ended.code == 0, ended
    assert "shows no sign of life: its lock is taken over" in " ".join(ended.out.split())
    assert "resuming at step 8" in ended.out
    assert remote_result(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_a_second_run_is_refused_and_a_killed_worker_starts_again_at_once(
    uninterrupted: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_own_code(tmp_path)
    with program(
        "train", "smoke", "--run-dir", folder, "--actions", "own.py:wait_for_a_signal", cwd=tmp_path
    ) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running())
        (pid,) = running.workers()
        here = one_line(train(folder, tmp_path))
        with monkeypatch.context() as elsewhere:
            another_host(tmp_path, elsewhere)
            other = train(folder, tmp_path)
        assert other.code == 2
        refusal = (
            f"another process (pid {pid} on host {socket.gethostname()}) is training in {folder}"
        )
        assert refusal in here
        assert refusal in other.err
        os.kill(pid, signal.SIGKILL)
        ended = running.wait()
    assert ended.code == 0, ended
    assert "killed by SIGKILL" in ended.out
    assert "no sign of life" not in ended.out
    assert remote_result(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_a_damaged_remote_checkpoint_is_skipped_and_removed_and_the_cache_is_not_used(
    uninterrupted: Path, stopped_at_5: Path, folder: str, tmp_path: Path
) -> None:
    upload(stopped_at_5, folder)
    upload_cut = (stopped_at_5 / "checkpoints" / "step-00000005.safetensors").read_bytes()[:-100]
    Store(folder).put("checkpoints/step-00000005.safetensors", upload_cut)
    cache = (
        RunFolder(folder).path / "checkpoints"
    )  # what an earlier run left here; another host went on since
    cache.mkdir(parents=True)
    (cache / "step-00000023.safetensors").write_bytes(b"stale")
    ended = train_here(folder, tmp_path)
    assert ended.code == 0, ended
    said = " ".join(ended.out.split())
    assert f"{folder}/checkpoints/step-00000005.safetensors is damaged" in said
    assert "step-00000023" not in said
    assert "resuming at step 4" in said
    assert checkpoints(folder) == [20, 24]
    assert remote_result(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_two_workers_of_a_tf_config_train_with_a_remote_model_dir(
    uninterrupted: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = free_addresses(2)
    config = {"cluster": {"master": addresses[:1], "worker": addresses[1:]}, "model_dir": folder}

    def become(role: str) -> None:
        monkeypatch.setenv("TF_CONFIG", json.dumps(config | {"task": {"type": role, "index": 0}}))

    become("worker")
    with program("train", "smoke", cwd=tmp_path) as follower:
        become("master")
        chief = paceline("train", "smoke", cwd=tmp_path)
        followed = follower.wait()
    assert (chief.code, followed.code) == (0, 0), (chief, followed)
    assert remote_result(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_the_evaluator_watches_a_remote_folder(
    uninterrupted: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(uninterrupted, folder)
    before = Store(folder).files()
    environment = tf_config({"chief": ["127.0.0.1:1"]}, "evaluator", model_dir=folder)
    ended = paceline_here("train", "smoke", cwd=tmp_path, environment=environment)
    assert ended.code == 0, ended
    after = Store(folder).files()
    assert {name: after[name] for name in before} == before, "the chief's files are the chief's"
    assert {name.rpartition("/")[0] or name for name in after if name not in before} == {
        "evaluations.jsonl",
        "events/evaluator",
    }
    lines = (Store(folder).read("evaluations.jsonl") or b"").splitlines()
    records = {record["step"]: record for record in map(json.loads, lines)}
    assert records[24]["test_accuracy"] == result_of(uninterrupted)["test_accuracy"]
    assert records[24]["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.long
def test_two_workers_of_one_machine_train_in_a_remote_folder_and_their_logs_are_there(
    uninterrupted: Path, folder: str, tmp_path: Path
) -> None:
    ended = train(folder, tmp_path, "--workers", "2")
    assert ended.code == 0, ended
    assert {"worker-0.log", "worker-1.log"} <= set(Store(folder).files())
    assert remote_result(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.long
def test_storage_without_objects_works_by_renaming(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    url = f"local://{tmp_path}/elsewhere/run"
    assert train(url, tmp_path, "--stop-at", "5").code == 0
    ended = train(url, tmp_path)
    assert ended.code == 0, ended
    assert "resuming at step 5" in ended.out
    run = tmp_path / "elsewhere" / "run"
    assert not list(run.rglob(".*"))
    assert remote_result(url)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_a_store_without_objects_puts_under_another_name_and_renames(tmp_path: Path) -> None:
    store = Store(f"local://{tmp_path}/deep/folder")
    assert store.files() == {}
    assert (store.create("lock", b"a"), store.create("lock", b"b"), store.read("lock")) == (
        True,
        False,
        b"a",
    )
    for content in (b"old", b"new"):
        store.put("checkpoints/one", content)
    (tmp_path / "large").write_bytes(b"12345")
    store.put("checkpoints/one", tmp_path / "large")
    before = store.files()["checkpoints/one"]
    assert (before.size, store.read("checkpoints/one"), store.read("none")) == (5, b"12345", None)
    assert sorted(path.name for path in (tmp_path / "deep").rglob("*") if path.is_file()) == [
        "lock",
        "one",
    ]
    store.put("checkpoints/one", b"54321")
    assert store.files()["checkpoints/one"] != before
    assert (
        store.get("checkpoints/one", tmp_path / "back"),
        store.get("gone", tmp_path / "gone"),
    ) == (True, False)
    assert (tmp_path / "back").read_bytes() == b"54321"
    store.remove("checkpoints/one")
    store.remove("checkpoints/one")
    assert set(store.files()) == {"lock"}


# The remote side by itself


class Recorded(Store):
    """The real store, which records what it does."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.done: list[str] = []

    def put(self, name: str, content: Path | bytes) -> None:
        super().put(name, content)
        self.done.append(f"put {name}")

    def remove(self, name: str) -> None:
        super().remove(name)
        self.done.append(f"remove {name}")


@pytest.fixture
def remote_run(folder: str, tmp_path: Path) -> Iterator[RemoteRun]:
    local = tmp_path / "local"
    local.mkdir()
    made = RemoteRun(Recorded(folder), local)
    made.lock("", lambda message: None)
    made.pull()
    yield made
    made.unlock()


def write(local: Path, *names: str) -> None:
    for name in names:
        (local / name).parent.mkdir(exist_ok=True)
        (local / name).write_text(name)


def test_publishing_leaves_something_to_resume_from_at_every_moment(
    remote_run: RemoteRun, tmp_path: Path
) -> None:
    old, new = "checkpoints/step-00000004.safetensors", "checkpoints/step-00000008.safetensors"
    write(
        tmp_path / "local",
        "result.json",
        old,
        "metrics.jsonl",
        "config.json",
        ".half.tmp",
        "events/one",
    )
    remote_run.publish()
    assert remote_run._store.done == [
        "put attempts/1/1/config.json",
        "put events/one",
        "put attempts/1/2/metrics.jsonl",
        f"put attempts/1/3/{old}",
        "put attempts/1/4/result.json",
    ]
    remote_run._store.done.clear()
    write(tmp_path / "local", new)
    (tmp_path / "local" / old).unlink()
    remote_run.publish()
    assert remote_run._store.done == [f"put attempts/1/5/{new}", f"remove attempts/1/3/{old}"]
    names = {"config.json", "events/one", "metrics.jsonl", "result.json", new}
    assert set(layout.view(Store(remote_run.url))) == names


def test_a_run_that_was_taken_over_writes_nothing_more(
    remote_run: RemoteRun, folder: str, tmp_path: Path
) -> None:
    write(tmp_path / "local", "config.json")
    successor = Lease(2, {"pid": 7, "host": "other", "token": "another"})
    Store(folder).put("lease.json", successor.to_bytes())
    with pytest.raises(LeaseLost, match="pid 7 on host other has taken over"):
        remote_run.publish()
    assert layout.view(Store(folder)) == {}
    remote_run.unlock()
    assert read_lease(Store(folder)) == successor


def test_exactly_one_of_several_creates_a_lock(folder: str) -> None:
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: won.append(Store(folder).create("lock", bytes([n]))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_what_another_process_writes_is_seen_although_the_folder_was_listed_before(
    folder: str,
) -> None:
    Store(folder).put("one", b"1")
    assert set(Store(folder).files()) == {"one"}
    boto3.client("s3").put_object(
        Bucket="bucket", Key=f"{folder.removeprefix('s3://bucket/')}/two", Body=b"2"
    )
    assert Store(folder).read("two") == b"2"
    assert set(Store(folder).files()) == {"one", "two"}


@pytest.mark.long
def test_a_file_uploaded_in_several_parts_is_fetched_unchanged(folder: str, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(150_000_000)
    (tmp_path / "large").write_bytes(content)
    Store(folder).put("large", tmp_path / "large")
    pieces: list[int] = []
    assert Store(folder).get("large", tmp_path / "back", pieces.append)
    assert (tmp_path / "back").read_bytes() == content
    assert (sum(pieces), len(pieces) > 1) == (len(content), True)
    key = f"{folder.removeprefix('s3://bucket/')}/large"
    assert (
        "-" in boto3.client("s3").head_object(Bucket="bucket", Key=key)["ETag"]
    )  # S3's sign of several parts


def test_an_upload_is_tried_again_while_storage_is_away(
    remote_run: RemoteRun, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.storage import transfer
    from paceline.storage.backends import StorageFault

    monkeypatch.setattr(transfer, "FIRST_WAIT_S", 0.01)
    said, failures, put = [], [1, 1], Store.put
    remote_run._send = said.append

    def flaky(name: str, content: Path | bytes) -> None:
        if name.endswith("config.json") and failures:
            failures.pop()
            raise StorageFault("it is away")
        put(Store(folder), name, content)

    monkeypatch.setattr(remote_run._store, "put", flaky)
    write(tmp_path / "local", "config.json")
    remote_run.publish()
    assert len([message for message in said if "it is away; trying again" in message.text]) == 2
    assert "config.json" in layout.view(Store(folder))


# Reading commands


def test_existing_run_gives_a_copy_of_a_remote_run_as_it_is_now(
    stopped_at_5: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="no run in s3://"):
        existing_run(f"{folder}/run")
    upload(stopped_at_5, f"{folder}/run")
    run = existing_run(f"{folder}/run/")
    assert run.where == f"{folder}/run"
    assert run.experiment() == RunFolder(stopped_at_5).experiment()
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "step-00000004.safetensors",
        "step-00000005.safetensors",
    ]
    assert run.metrics.read() == RunFolder(stopped_at_5).metrics.read()
    (row,) = api.runs(folder)
    assert (row.name, row.state, row.step) == ("run", "unfinished", 5)
    assert f"--run-dir {folder}/run" in row.note
    assert main(["runs", folder]) == 0
    assert f"--run-dir {folder}/run" in capsys.readouterr().out.replace("\n", "")
    (listed,) = all_runs(folder)
    assert (listed.where, listed.checkpoints.exists()) == (f"{folder}/run", False)
    assert default_path("smoke", Experiment(), folder) == f"{folder}/smoke-{Experiment().digest()}"


def test_a_folder_with_files_but_no_config_is_left_alone(folder: str, tmp_path: Path) -> None:
    Store(folder).put("holiday/picture.jpg", b"x")
    assert "is not a run folder: it has holiday/picture.jpg" in one_line(
        train_here(folder, tmp_path)
    )
    assert set(Store(folder).files()) == {"holiday/picture.jpg"}


# Data


def draw_images(place: Path) -> None:
    random = np.random.default_rng(1)
    for split, count in (("train", 40), ("val", 7)):
        for label, name in enumerate(("dark", "light")):
            (place / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(label * 128, 128 + label * 128, (32, 32, 3), np.uint8)
                Image.fromarray(pixels).save(place / split / name / f"{number}.png")


ENCODED = ("--data.image-size", "32", "--augment.padding", "0", "--stop-at", "2")


def test_images_and_the_records_made_of_them_are_read_from_remote_storage(
    folder: str, tmp_path: Path
) -> None:
    draw_images(tmp_path / "pictures")
    upload(tmp_path / "pictures", f"{folder}/pictures")
    info = paceline_here("data", "info", f"{folder}/pictures", cwd=tmp_path)
    assert (info.code, "80 examples" in info.out) == (0, True), info
    records = f"{folder}/records"
    converted = paceline(
        "data", "convert", f"{folder}/pictures", records, "--shards", "2", cwd=tmp_path
    )
    assert (
        converted.code,
        f"ready: --data.source tfrecord --data.dir {records}" in converted.out,
    ) == (0, True), converted
    again = paceline_here("data", "convert", "pictures", records, cwd=tmp_path)
    assert "not empty" in one_line(again)
    checked = paceline_here("data", "check", records, cwd=tmp_path)
    assert checked.code == 0, checked
    (tmp_path / "records").mkdir()
    for name in Store(records).files():
        Store(records).get(name, tmp_path / "records" / name)
    digests = []
    for place in (records, "records"):
        flags = ("--data.source", "tfrecord", "--data.dir", place, *ENCODED)
        ended = train_here(f"run-{len(digests)}", tmp_path, *flags)
        assert ended.code == 0, ended
        config = json.loads((tmp_path / f"run-{len(digests)}" / "config.json").read_text())
        assert config["experiment"]["data"]["dir"] == place
        digests.append(ended.last_line["state_sha256"])
    assert digests[0] == digests[1]


def test_a_copy_is_made_once_continues_after_an_error_and_follows_the_remote_folder(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        Store(folder).put(f"class/{number}.png", bytes([number]))
    fetched: list[str] = []
    get = Store.get

    def counting(store: Store, name: str, target: Path, advance: Any) -> bool:
        if len(fetched) == 25 and cut:
            raise OSError("the line is cut")
        fetched.append(name)
        return get(store, name, target, advance)

    def bring() -> dict[str, bytes]:
        remote._ready.clear()
        place = Path(remote.local_folder(folder))
        return {path.name: path.read_bytes() for path in place.glob("class/*")}

    monkeypatch.setattr(Store, "get", counting)
    cut = True
    with pytest.raises(OSError, match="the line is cut"):
        bring()
    cut = False
    assert bring() == {f"{number}.png": bytes([number]) for number in range(40)}
    assert len(fetched) == 40  # none of them twice
    Store(folder).put("class/3.png", b"\xff")
    Store(folder).remove("class/4.png")
    changed = bring()
    assert (changed["3.png"], "4.png" in changed, fetched[40:]) == (b"\xff", False, ["class/3.png"])


# What a person can put right


def test_a_missing_bucket_and_missing_credentials_are_one_line(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    assert "cannot list s3://no-such/run: The specified bucket does not exist" in one_line(
        train("s3://no-such/run", tmp_path)
    )
    assert "there is nothing in s3://bucket/nothing-here" in one_line(
        paceline("data", "info", "s3://bucket/nothing-here", cwd=tmp_path)
    )
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert "Unable to locate credentials; set AWS_ACCESS_KEY_ID" in one_line(
        train("s3://bucket/run", tmp_path)
    )
    assert not list((tmp_path / "cache" / "runs").iterdir())


def test_wrong_credentials_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    with server(INITIAL_NO_AUTH_ACTION_COUNT="0") as url:
        for name, value in {
            "ENDPOINT_URL": url,
            "ACCESS_KEY_ID": "some",
            "SECRET_ACCESS_KEY": "one",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        assert "check the credentials" in one_line(train("s3://bucket/run", tmp_path))


def test_a_missing_extra_and_an_unknown_protocol_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UserError, match=r"install the extra gs: pip install 'paceline\[gs\]'"):
        Store("gs://bucket/run").files()
    with pytest.raises(UserError, match="the protocol nonsense is not known; use s3://"):
        Store("nonsense://bucket/run").files()


def test_a_store_that_does_not_answer_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "us")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "er")
    monkeypatch.setenv("PACELINE_STORAGE_PATIENCE_S", "0.5")
    began = time.monotonic()
    ended = train("s3://bucket/run", tmp_path, "--max-restarts", "1")
    assert "Could not connect to the endpoint URL" in one_line(ended)
    assert "trying again in" in ended.out, "a passing fault is a restart first"
    assert time.monotonic() - began < 60
