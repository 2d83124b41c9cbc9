"""The run folder: which experiment it belongs to, the names of its files, and where runs are found.

Only the chief opens and writes a run folder; every command may read one. If the folder is on remote
storage, `path` is the local side and `remote.RemoteRun` keeps both sides the same. How files are
written belongs to `files`, checkpoints to `checkpoint`, event files to `tensorboard`.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.config.dataclass_json import differences
from paceline.config.experiment import Experiment
from paceline.errors import UserError, did_you_mean
from paceline.messages import Send
from paceline.run_folder.files import explained, plain, read_json, write_json
from paceline.run_folder.lock import FileLock
from paceline.run_folder.metrics import Predictions, Records
from paceline.run_folder.remote import RemoteRun
from paceline.run_folder.storage import Store, cached, is_remote
from paceline.run_folder.versions import library_versions, machine

FORMAT = 1
"""Of config.json. A newer Paceline writes a higher number."""
RESTORE = "restore it from a copy, or use another --run-dir"
OWN_NAMES = re.compile(r"lock$|\.|(worker-|ps-|chief|spark).*\.log$")
"""Files that may be in a folder before its config.json."""


class RunFolder:
    """The folder of one training. `where` is what the user gave: a path or a URL.

    `local` is the local side of a remote folder, by default a place in the cache.
    Building a RunFolder touches neither disk nor network.
    """

    def __init__(self, path: str | Path, local: Path | None = None) -> None:
        remote = is_remote(path)
        self.where = str(path).rstrip("/") if remote else str(Path(path))
        self.path = (local or cached("runs", self.where)) if remote else Path(path)
        self._remote = RemoteRun(Store(self.where), self.path) if remote else None
        facts = {"token": self._remote.token} if self._remote else {}
        self._lock = FileLock(self.path / "lock", f"training in {self.where}", **facts)
        self._config = self.path / "config.json"
        self._result = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self.events = self.path / "events"
        self.evaluator_events = self.events / "evaluator"
        self.metrics = Records(self.path / "metrics.jsonl")
        self.evaluations = Records(self.path / "evaluations.jsonl")
        self.starts = Records(self.path / "starts.jsonl")
        self.predictions = Predictions(self.path / "evaluation.npz")

    def __repr__(self) -> str:
        return f"RunFolder({self.where!r})"

    def log(self, name: str) -> Path:
        """Return the log file of a process of the run: worker-0.log, ps-1.log ..."""
        return self.path / f"{name.replace(' ', '-')}.log"

    def lock(self, wait_s: float = 3.0, send: Send = lambda message: None) -> None:
        """Keep other processes out until `unlock` or the end of this process.

        If the folder is remote, this then fetches everything but its checkpoints.
        """
        self.make()
        earlier = self._lock.acquire(wait_s)
        if self._remote:
            self._remote.lock(str(earlier.get("token", "")), send)
            self._remote.pull()

    def unlock(self) -> None:
        """Let other processes in. A remote folder stays locked for a minute without this."""
        if self._remote:
            self._remote.unlock()
        self._lock.release()

    def is_locked(self) -> bool:
        """Return whether a process of this machine trains here now."""
        return self._lock.is_locked()

    def open(
        self, experiment: Experiment, data_facts: dict[str, Any], kernels: str = "tensorflow"
    ) -> list[str]:
        """Make this the folder of the experiment, or check that it is.

        Returns which libraries have changed since the run began.
        """
        self.make()
        changed = []
        if self.exists():
            self._compare_kernels(kernels)
            changed = self._compare(experiment, data_facts)
        else:
            config = {"format": FORMAT, "experiment": experiment.to_json(), "data": data_facts}
            config |= {"kernels": kernels, "versions": library_versions()}
            write_json(self._config, config)
        with explained("make the folders of", self.path):
            self.events.mkdir(exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
        if self._remote:
            self._remote.pull_checkpoints()
        self.publish()
        return changed

    def publish(self) -> None:
        """Upload what has changed. A resume elsewhere finds only what was published."""
        if self._remote:
            self._remote.publish()

    def publish_evaluations(self) -> None:
        """Upload the evaluator's own files."""
        if self._remote:
            own = [self.evaluations.path, *self.evaluator_events.glob("*")]
            names = [path.relative_to(self.path).as_posix() for path in own if path.exists()]
            self._remote.add(names)

    def refresh(self) -> None:
        """Fetch what the chief has published since."""
        if self._remote:
            self._remote.refresh()

    def exists(self) -> bool:
        """Return whether there is a run in the folder."""
        return self._config.exists()

    def config(self) -> dict[str, Any]:
        """Return the content of config.json."""
        config = read_json(self._config, RESTORE)
        written_by = config.get("format")
        if not isinstance(config.get("experiment"), dict) or not isinstance(written_by, int):
            raise UserError(f"{self._config} is damaged: it has no experiment; {RESTORE}")
        if written_by > FORMAT:
            raise UserError(
                f"{self.where} was written by a newer Paceline (format {written_by}, this one "
                f"reads up to {FORMAT}); update Paceline, or use another --run-dir"
            )
        return config

    def experiment(self) -> Experiment:
        """Return the run's experiment; fields that are newer than the folder have defaults."""
        try:
            return Experiment.from_json(self.config()["experiment"])
        except (TypeError, AttributeError) as error:
            raise UserError(f"{self._config} is damaged ({error}); {RESTORE}") from error

    def data_facts(self) -> dict[str, Any]:
        """Return what is known of the run's data: sizes, image shape, classes."""
        return dict(self.config().get("data", {}))

    def kernels(self) -> str:
        """Return which kernels the run was trained with: own or tensorflow."""
        return str(self.config().get("kernels", "tensorflow"))

    def write_result(self, result: dict[str, Any]) -> None:
        """Write and publish the result of this attempt."""
        assert "finished" in result, "a result says whether the run is finished"
        write_json(self._result, result)
        self.publish()

    def read_result(self) -> dict[str, Any] | None:
        """Return the result of the last attempt; None if none has ended yet."""
        if not self._result.exists():
            return None
        return read_json(self._result, "train again to write it anew")

    def append_start(self, step: int, place: str, workers: int) -> None:
        """Record that training starts or continues at this step, where, with how many workers."""
        now = {"step": step, "time": time.time(), "place": place, "workers": workers}
        self.starts.append(now | {"machine": machine(), "versions": library_versions()})

    def make(self) -> None:
        """Make the folder. One with files of somebody else but no config.json is an error."""
        with explained("make", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            names = sorted(entry.name for entry in self.path.iterdir())
        others = [name for name in names if not OWN_NAMES.match(name)]
        if others and not self.exists() and not self._remote:
            raise UserError(
                f"{self.where} is not a run folder: it has {others[0]} but no config.json; "
                "use a new or empty --run-dir"
            )

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Make the folder for an attempt; remove it if a UserError comes before config.json."""
        new = not self.path.exists()
        self.make()
        try:
            yield
        except UserError:
            if new and not self.exists():
                shutil.rmtree(self.path)
            raise

    def _compare_kernels(self, kernels: str) -> None:
        if kernels != self.kernels():
            raise UserError(
                f"{self.where} was trained with --kernels {self.kernels()}; --kernels {kernels} "
                f"gives other bits; give --kernels {self.kernels()}, or use another --run-dir"
            )

    def _compare(self, experiment: Experiment, data_facts: dict[str, Any]) -> list[str]:
        if changed := differences(self.experiment().to_json(), experiment.to_json()):
            raise UserError(
                f"{self.where} is the run of another experiment: {_short(changed)}; "
                "use another --run-dir, or the old settings to resume"
            )
        old = self.data_facts()
        # Folders of older versions have fewer facts.
        known = {name: fact for name, fact in plain(data_facts).items() if name in old}
        if changed := [line.replace(": ", " ", 1) for line in differences(old, known)]:
            raise UserError(
                f"{self.where} cannot continue, the data is not the same: {_short(changed)}; "
                "use another --run-dir"
            )
        return differences(self.config().get("versions", {}), library_versions())


def default_path(recipe: str, experiment: Experiment, root: str | Path = "runs") -> str | Path:
    """Return the folder of an experiment. It is always the same, so the same command resumes."""
    name = f"{recipe}-{experiment.digest()}"
    return f"{str(root).rstrip('/')}/{name}" if is_remote(root) else Path(root) / name


def all_runs(root: str | Path = "runs") -> list[RunFolder]:
    """Return every run under `root`, by name; of remote runs, copies without checkpoints."""
    if is_remote(root):
        files = [name.split("/") for name in Store(str(root)).files()]
        names = [parts[0] for parts in files if len(parts) == 2 and parts[1] == "config.json"]
        return [_copy(f"{str(root).rstrip('/')}/{name}", checkpoints=False) for name in names]
    return [RunFolder(config.parent) for config in sorted(Path(root).glob("*/config.json"))]


def existing_run(
    path: str | Path, root: str | Path = "runs", checkpoints: bool = True
) -> RunFolder:
    """Return the run at `path`, or of that name under `root`, for commands that read one.

    For a remote run this is a copy as of now, which is removed when this process ends.
    """
    if is_remote(path):
        run = _copy(str(path), checkpoints)
        if not run.exists():
            raise UserError(
                f"no run in {path}; give the URL of its folder, the one with config.json"
            )
        return run
    for run in (RunFolder(path), RunFolder(Path(root) / path)):
        if run.exists():
            return run
    names = [run.path.name for run in all_runs(root)]
    none = f"there are no runs in {root}; `paceline train` makes one"
    raise UserError(f"no run in {path}; {did_you_mean(Path(path).name, names) if names else none}")


def watched_run(path: str | Path) -> RunFolder:
    """Return a run that others train, for `refresh`; it need not exist yet."""
    return RunFolder(path, _scratch() if is_remote(path) else None)


def _copy(url: str, checkpoints: bool) -> RunFolder:
    folder = _scratch()
    remote = RemoteRun(Store(url), folder)
    remote.pull()
    if checkpoints:
        remote.pull_checkpoints()
    return RunFolder(url, folder)


def _scratch() -> Path:
    """Make a folder of this process, apart from the local side of a training on this machine."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _short(lines: list[str], most: int = 5) -> str:
    shown = [line if len(line) <= 120 else line[:117] + "..." for line in lines[:most]]
    return ", ".join(shown) + (f" and {len(lines) - most} more" if len(lines) > most else "")
