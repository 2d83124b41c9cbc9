"""The trackers of a run, and what the run folder notes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.experiment.diff import flatten
from paceline.extras.tracking.table import load_client
from paceline.extras.tracking.tracker import Notes, Tracking
from paceline.job import Job
from paceline.messages import Send
from paceline.runs.folder import RunFolder
from paceline.storage.files import write_json
from paceline.versions import library_versions

if TYPE_CHECKING:
    from paceline.chief import ChiefRun
    from paceline.loop import Action

FILES = ("config.json", "metrics.jsonl", "result.json", "evaluation.npz", "starts.jsonl")
"""Files of the run that trackers get at the end."""


def open_tracker(name: str, client: Any, run: RunFolder, send: Send) -> Tracking:
    """Begin a run in a tracker, or continue the one that the run folder notes."""
    path, experiment = _path(run, name), run.experiment()
    params = flatten(experiment.to_json()) | {"run_dir": run.where}
    params |= {"experiment_digest": experiment.digest()}
    params |= {f"versions.{library}": version for library, version in library_versions().items()}

    def save(notes: Notes) -> None:
        run.check_lease()
        write_json(path, asdict(notes))

    own = client(Path(run.where).name, params)
    files = [run.path / each for each in FILES]
    return Tracking(name, own, _notes(path), run.metrics.read(), files, save, send)


def _path(run: RunFolder, name: str) -> Path:
    return run.path / f"tracker-{name}.json"


def _notes(path: Path) -> Notes:
    """Return what was noted; damaged notes begin a new run in the tracker."""
    try:
        values = json.loads(path.read_text())
        return Notes(str(values["id"]), int(values["logged"]), bool(values["done"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Notes()


def send_late(names: Sequence[str], run: RunFolder, send: Send) -> None:
    """Give a finished run to trackers that could not be reached while it was trained."""
    late = [name for name in names if not _notes(_path(run, name)).done]
    trackers = [open_tracker(name, load_client(name), run, send) for name in late]
    for tracker in trackers:
        tracker.finish(run.read_result() or {})
    if trackers:
        run.publish()


def load_trackers(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Import the clients of `--track`; return the function that builds their actions."""
    clients = {name: load_client(name) for name in job.run.track}
    return lambda chief: [
        open_tracker(name, client, chief.folder, chief.send) for name, client in clients.items()
    ]
