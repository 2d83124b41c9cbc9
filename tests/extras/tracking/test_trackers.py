"""Trackers get what a run measures, and never stop a training.

The long tests use a real MLflow server and W&B's offline mode (`make trackers` installs both).
"""

import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blocks import block_of
from helpers import free_port, metrics_of, paceline, result_of, wait_until
from in_process import paceline_here
from paceline.errors import UserError
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.tracking import trackers
from paceline.extras.tracking.trackers import Notes, Tracker
from paceline.messages import Message, Warn
from paceline.run_folder.folder import RunFolder

MLFLOW = Path(
    os.environ.get("PACELINE_MLFLOW", Path(__file__).parents[3] / "build/mlflow/bin/mlflow")
)


class Service:
    """A tracker in memory that can be away."""

    def __init__(self) -> None:
        self.away = False
        self.answers = threading.Event()
        self.answers.set()
        self.logged: list[int] = []
        self.finished: list[dict[str, Any]] = []

    def open(self, run_id: str) -> str:
        self._answer()
        return run_id or "new"

    def log(self, records: Sequence[tuple[int, dict[str, float]]]) -> None:
        self._answer()
        self.logged += [step for step, _ in records]

    def finish(self, result: dict[str, Any], files: Sequence[Path]) -> None:
        self._answer()
        self.finished.append(result)

    def _answer(self) -> None:
        self.answers.wait(60)
        if self.away:
            raise ConnectionError("refused")


def track(
    service: Service, path: Path, notes: Notes | None = None, earlier: Sequence[int] = ()
) -> tuple[Tracker, list[str]]:
    run, warnings = RunFolder(path), list[str]()
    run.open(get_recipe("smoke"), {"train": 1, "test": 1, "classes": ["a"], "image_shape": None})
    for step in earlier:
        run.metrics.append({"step": step, "loss": 1.0})
    if notes:
        notes.write(run, "mlflow")

    def send(message: Message) -> None:
        assert isinstance(message, Warn)
        warnings.append(message.text)

    return Tracker("mlflow", service, run, send), warnings


def test_a_tracker_that_is_away_gets_everything_when_it_is_back_without_a_repeat(
    tmp_path: Path,
) -> None:
    service = Service()
    service.away = True
    tracks, warnings = track(service, tmp_path / "run")
    tracks(block_of(1), None)
    wait_until(lambda: bool(warnings))
    tracks(block_of(2), None)
    assert "mlflow cannot be reached (ConnectionError: refused); training continues" in warnings[0]
    service.away = False
    tracks(block_of(3), None)
    tracks.finish({"finished": True})
    assert service.logged == [1, 2, 3]
    assert service.finished == [{"finished": True}]
    assert warnings[1:] == ["mlflow is back, and has everything"]


def test_a_resumed_run_sends_what_was_not_sent_and_nothing_twice(tmp_path: Path) -> None:
    service = Service()
    tracks, _ = track(service, tmp_path / "run", Notes("old", logged=4), [2, 4, 6])
    tracks(block_of(8), None)
    tracks.finish({"finished": True})
    assert service.logged == [6, 8]
    assert Notes.read(RunFolder(tmp_path / "run"), "mlflow") == Notes("old", logged=8, done=True)


def test_training_never_waits_for_a_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "FINISH_S", 0.1)
    service = Service()
    service.answers.clear()
    tracks, warnings = track(service, tmp_path / "run")
    for step in range(1, 100):
        tracks(block_of(step), None)
    tracks.finish({"finished": True})
    assert service.logged == []
    assert "mlflow did not get everything (it is slow)" in warnings[-1]
    service.answers.set()


def test_a_tracker_that_is_not_known_or_not_installed_is_refused(tmp_path: Path) -> None:
    ended = paceline_here("train", "smoke", "--track", "tensorbord", cwd=tmp_path)
    assert ended.code == 2
    assert "'mlflow', 'wandb'" in ended.err
    with pytest.raises(UserError, match=r"needs the package .*none_client .* pip install"):
        trackers.load_client("none")


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    """Start a real MLflow server; its data stay in `folder`."""
    folder.mkdir(exist_ok=True)
    command = [str(MLFLOW), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=folder, start_new_session=True, **quiet)
    try:
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/health"), timeout_s=120)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(120)


def _answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=2).status == 200
    except OSError:
        return False


needs_mlflow = pytest.mark.skipif(not MLFLOW.exists(), reason="`make trackers` installs a server")


@pytest.mark.long
@needs_mlflow
def test_a_real_mlflow_server_has_the_run_and_a_resume_goes_on_in_it(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    with mlflow_server(tmp_path / "server", free_port()) as url:
        flags = ("train", "smoke", "--run-dir", "run", "--track", "mlflow")
        where = {"MLFLOW_TRACKING_URI": url}
        stopped = paceline(*flags, "--stop-at", "5", cwd=tmp_path, environment=where)
        assert stopped.code == 0, stopped.err
        client = mlflow.MlflowClient(tracking_uri=url)
        experiment = client.get_experiment_by_name("paceline").experiment_id
        (run,) = client.search_runs([experiment])
        assert run.info.status == "KILLED"
        assert run.data.tags["paceline.step"] == "5"
        ended = paceline(*flags, cwd=tmp_path, environment=where)
        assert ended.code == 0, ended.err
        (run,) = client.search_runs([experiment])
        assert run.info.status == "FINISHED"
        assert run.info.run_name == "run"
        result = result_of(tmp_path / "run")
        assert run.data.tags["paceline.state_sha256"] == result["state_sha256"]
        assert run.data.params["schedule.rate"] == str(get_recipe("smoke").schedule.rate)
        assert run.data.metrics["test_accuracy"] == result["test_accuracy"]
        sent = [m.step for m in client.get_metric_history(run.info.run_id, "loss")]
        assert sent == [record["step"] for record in metrics_of(tmp_path / "run")]
        files = {file.path for file in client.list_artifacts(run.info.run_id)}
        assert {"config.json", "metrics.jsonl", "result.json", "evaluation.npz"} <= files
        path = client.download_artifacts(run.info.run_id, "result.json", str(tmp_path))
        assert json.loads(Path(path).read_text())["state_sha256"] == result["state_sha256"]


@pytest.mark.long
def test_wandb_offline_has_the_run_and_a_resume_has_the_same_id(
    tmp_path: Path, uninterrupted: Path
) -> None:
    pytest.importorskip("wandb")
    where = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    flags = ("train", "smoke", "--run-dir", "run", "--track", "wandb")
    for more in (("--stop-at", "5"), ()):
        ended = paceline(*flags, *more, cwd=tmp_path, environment=where)
        assert ended.code == 0, ended.err
        assert "cannot be reached" not in ended.out + ended.err
    offline = sorted((tmp_path / "wandb").glob("offline-run-*"))
    notes = json.loads((tmp_path / "run" / "tracker-wandb.json").read_text())
    assert [folder.name.endswith(f"-{notes['id']}") for folder in offline] == [True, True]
    assert (notes["logged"], notes["done"]) == (24, True)
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
