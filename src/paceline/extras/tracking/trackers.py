"""Experiment trackers by name (`--track mlflow wandb`): sends a run's metrics to a service.

The chief sends the records of metrics.jsonl from separate threads. A tracker that cannot be
reached never stops or slows a training: what it missed is sent when it is back. The run folder
notes what was sent, so a resumed run continues in the same tracker run without a gap or a repeat.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from paceline.errors import UserError, first_line
from paceline.experiment.fields import Json, flatten
from paceline.job import Job
from paceline.maths.metrics import BlockResult, EvalResult, scalars
from paceline.messages import Send, Warn
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import read_json, run_file, write_json
from paceline.versions import library_versions

if TYPE_CHECKING:
    from paceline.chief import ChiefRun
    from paceline.loop import Action

FILES = ("config.json", "metrics.jsonl", "result.json", "evaluation.npz", "starts.jsonl")
"""Files of the run that trackers get at the end."""
FINISH_S, FINISH_DOWN_S = 30.0, 3.0
"""Longest wait for a tracker at the end of a training; if it could not be reached before."""

Numbers = dict[str, float]


class Client(Protocol):
    """A run in a tracker. Every method may raise anything: then it is tried again later."""

    def open(self, run_id: str) -> str:
        """Begin a run, or continue the one with this id; return its id."""

    def log(self, records: Sequence[tuple[int, Numbers]]) -> None:
        """Send the numbers of some steps."""

    def finish(self, result: Json, files: Sequence[Path]) -> None:
        """Send the result and the files, and end the run; `finished` may be false."""


Build = Callable[[str, Json], Client]
"""Builds a client from the name and the settings of a run."""


def load_trackers(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Import the clients of `--track`; return the function that builds their actions."""
    clients = {name: load_client(name) for name in job.run.track}
    return lambda chief: [
        open_tracker(name, client, chief.folder, chief.send) for name, client in clients.items()
    ]


def send_late(names: Sequence[str], run: RunFolder, send: Send) -> None:
    """Give a finished run to trackers that could not be reached while it was trained."""
    late = [name for name in names if not Notes.read(run, name).done]
    for name in late:
        open_tracker(name, load_client(name), run, send).finish(run.read_result() or {})
    if late:
        run.publish()


def load_client(name: str) -> Build:
    """Return the class `Client` of `NAME_client.py`; a missing package is a UserError."""
    try:
        client: Build = import_module(f"paceline.extras.tracking.{name}_client").Client
    except ModuleNotFoundError as error:
        raise UserError(
            f"track is {name}, which needs the package {error.name} where the chief runs: "
            f"pip install 'paceline[{name}]'"
        ) from error
    return client


def open_tracker(name: str, client: Build, run: RunFolder, send: Send) -> Tracker:
    """Begin a run in a tracker, or continue the one that the run folder notes."""
    experiment = run.experiment()
    params = flatten(experiment.to_json()) | {"run_dir": run.where}
    params |= {"experiment_digest": experiment.digest()}
    params |= {f"versions.{library}": version for library, version in library_versions().items()}
    return Tracker(name, client(Path(run.where).name, params), run, send)


@dataclass
class Notes:
    """What the run folder notes about a tracker run."""

    id: str = ""
    logged: int = 0
    """The last step whose metrics were sent."""
    done: bool = False
    """Whether the result of the finished run was sent."""

    @staticmethod
    def read(run: RunFolder, name: str) -> Notes:
        """Return what was noted; damaged notes begin a new run in the tracker."""
        try:
            values = read_json(run.path / f"tracker-{name}.json", "", run_file)
            return Notes(str(values["id"]), int(values["logged"]), bool(values["done"]))
        except (UserError, ValueError, KeyError, TypeError):
            return Notes()

    def write(self, run: RunFolder, name: str) -> None:
        run.check_lease()
        write_json(run.path / f"tracker-{name}.json", asdict(self))


class Tracker:
    """An action that gives metrics to a tracker, in threads that training never waits for.

    It begins with what an earlier start of the training could not send. After each block it tries
    again, unless it is still sending.
    """

    def __init__(self, name: str, client: Client, run: RunFolder, send: Send) -> None:
        self._name, self._client, self._run, self._send = name, client, run, send
        self._notes = Notes.read(run, name)
        self._opened = False
        self._last_error = ""
        """Why the tracker cannot be reached; empty while it can."""
        records = [(record["step"], _numbers(record)) for record in run.metrics.read()]
        self._unsent = [each for each in records if each[0] > self._notes.logged]
        self._thread = self._start()

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        if block.step > self._notes.logged:  # after a resume, steps are trained again
            self._unsent.append((block.step, _numbers(scalars(block, evaluation))))
        if not self._thread.is_alive():
            self._thread = self._start()

    def finish(self, result: Json) -> None:
        """Send the result of this training, and wait a while for the tracker."""
        end = time.monotonic() + (FINISH_DOWN_S if self._last_error else FINISH_S)
        self._thread.join(end - time.monotonic())
        if not self._thread.is_alive():
            self._thread = self._start(result)
            self._thread.join(end - time.monotonic())
        if self._thread.is_alive() or self._last_error:
            why = self._last_error or "it is slow"
            after = "the run folder has it, and the next start with --track sends it"
            self._send(Warn(f"{self._name} did not get everything ({why}); {after}"))

    def _start(self, result: Json | None = None) -> threading.Thread:
        thread = threading.Thread(target=self._try_to_send, args=(result,), daemon=True)
        thread.start()
        return thread

    def _try_to_send(self, result: Json | None) -> None:
        """Send what is there, and the result if there is one. A failure is only a warning."""
        error = ""
        try:
            self._send_all(result)
        except Exception as raised:
            error = f"{type(raised).__name__}: {first_line(raised)[:200]}"
        if error and not self._last_error:
            text = f"{self._name} cannot be reached ({error}); training continues"
            self._send(Warn(f"{text}, and what it missed is sent when it is back"))
        elif self._last_error and not error:
            self._send(Warn(f"{self._name} is back, and has everything"))
        self._last_error = error

    def _send_all(self, result: Json | None) -> None:
        notes = self._notes
        if not self._opened:
            notes.id = self._client.open(notes.id)
            self._opened = True
            notes.write(self._run, self._name)
        if unsent := list(self._unsent):  # a block may add to it meanwhile
            self._client.log(unsent)
            notes.logged = unsent[-1][0]
            del self._unsent[: len(unsent)]
            notes.write(self._run, self._name)
        if result is not None:
            files = [self._run.path / name for name in FILES]
            self._client.finish(result, [file for file in files if file.exists()])
            notes.done = bool(result.get("finished"))
            notes.write(self._run, self._name)


def _numbers(values: Json) -> Numbers:
    """Return what trackers can draw."""
    return {
        name: float(value)
        for name, value in values.items()
        if type(value) in (int, float) and name != "step"
    }
