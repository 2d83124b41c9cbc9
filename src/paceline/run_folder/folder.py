"""The run folder: which experiment it belongs to, who may write it, and the names of its files.

Only the chief opens and writes a run folder; every command may read one. If the folder is on remote
storage, `path` is the local side and `remote_run.RemoteRun` keeps both sides the same.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json
from paceline.messages import Send
from paceline.run_folder.records import RecordFile
from paceline.storage.files import (
    explained,
    is_file,
    read_json,
    read_run_file,
    refuse_link,
    replacing,
    retry,
    run_file,
    sealed,
    write_json,
)
from paceline.storage.locations import cached, is_remote
from paceline.storage.lock import FileLock, LeaseLost
from paceline.versions import library_versions, machine

if TYPE_CHECKING:
    from paceline.run_folder.remote_run import RemoteRun

FORMAT = 1
"""Of config.json. A newer Paceline writes a higher number."""
RESTORE = "restore it from a copy, or use another --run-dir"
DRIVER_FILE = ".driver-"
"""How a file begins by which a driver sees who shares the folder; a killed driver leaves it."""
OWN_NAMES = re.compile(r"lock$|\.|(worker-|ps-|chief|spark).*\.log$")
"""Files that may be in a folder before its config.json."""


class RunFolder:
    """The folder of one training. `where` is what the user gave, a path or a URL; `local` is the
    local side of a remote folder. Building one touches neither disk nor network."""

    def __init__(self, path: str | Path, local: Path | None = None) -> None:
        self._remote: RemoteRun | None = None
        self.where, self.path = str(Path(path)), Path(path)
        if is_remote(path):
            from paceline.run_folder.remote_run import open_both_sides

            self.where = str(path).rstrip("/")
            self.path = local or cached("runs", self.where)
            self._remote = open_both_sides(self.where, self.path)
        token = self._remote.holder.token if self._remote else ""
        self._lock = FileLock(self.path / "lock", f"training in {self.where}", token)
        self._config = self.path / "config.json"
        self._result = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self.events = self.path / "events"
        self.evaluator_events = self.events / "evaluator"
        self.metrics = RecordFile(self.path / "metrics.jsonl", self.check_lease)
        self.evaluations = RecordFile(self.path / "evaluations.jsonl")
        self.chain = RecordFile(self.path / "chain.jsonl", self.check_lease)
        self.audits = RecordFile(self.path / "audits.jsonl")
        self.starts = RecordFile(self.path / "starts.jsonl", self.check_lease)
        self._predictions = self.path / "evaluation.npz"

    def log(self, name: str) -> Path:
        """Return the log file of a process of the run: worker-0.log, ps-1.log ..."""
        return self.path / f"{name.replace(' ', '-')}.log"

    def lock(self, wait_s: float = 3.0, send: Send = lambda message: None) -> None:
        """Keep others out until `unlock`; fetch a remote folder, but for its checkpoints."""
        self.make()
        earlier = self._lock.acquire(wait_s)
        for leftover in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
            leftover.unlink(missing_ok=True)  # a killed process did not finish it
        if self._remote:
            self._remote.lock(earlier.token, send)
            self._remote.keep_alive()
            self._remote.pull()

    def unlock(self) -> None:
        """Let other processes in. A remote folder stays locked for a minute without this."""
        if self._remote:
            self._remote.unlock()
        self._lock.release()

    def check_lease(self) -> None:
        """Raise LeaseLost if this process locked the folder, but another has taken over since."""
        self._lock.check()
        if self._remote:
            self._remote.holder.check()

    @property
    def epoch(self) -> int:
        """Return the number of this process's lease: it grows with each holder; 0 if not locked."""
        return self._remote.holder.lease.epoch if self._remote else self._lock.epoch

    def check_number(self, lease: int) -> None:
        """Raise LeaseLost if another lease was taken since this one, of a chief that was lost."""
        if self._lock.owner().epoch != lease:
            raise LeaseLost(f"another command has taken over {self.where}")

    def is_locked(self) -> bool:
        """Return whether a process of this machine trains here now."""
        return self._lock.is_locked()

    def open(
        self,
        experiment: Experiment,
        data_facts: Json,
        kernels: str = "tensorflow",
        code: dict[str, str] | None = None,
    ) -> list[str]:
        """Make this the folder of the experiment, or check that it is and return which libraries
        have changed. `code` has digests of the user's own functions."""
        self.make()
        changed = []
        if self.exists():
            from paceline.run_folder.comparison import check_same_run

            changed = check_same_run(self, experiment, data_facts, kernels, code or {})
        else:
            config = {"format": FORMAT, "experiment": experiment.to_json(), "data": data_facts}
            config |= {"kernels": kernels, "versions": library_versions(), "code": code or {}}
            config["data_dir"] = where = experiment.data.dir
            if where and not is_remote(where):
                config["data_dir"] = os.path.abspath(os.path.expanduser(where))
            self.check_lease()
            write_json(self._config, sealed(config))
        with explained("make the folders of", self.path):
            self.events.mkdir(exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
        self.refresh()
        self.publish()
        return changed

    def publish(self) -> None:
        """Upload what has changed. A resume elsewhere finds only what was published."""
        if self._remote:
            self._remote.publish()

    def publish_evaluations(self) -> None:
        """Upload the own files of the evaluator and the auditor."""
        own = (self.evaluations.path, self.audits.path, *self.evaluator_events.glob("*"))
        for path in own if self._remote else ():
            if self._remote and path.exists():
                self._remote.add(path.relative_to(self.path).as_posix())

    def refresh(self, checkpoints: bool = True) -> None:
        """Fetch what the chief has published since, with or without its checkpoints."""
        if self._remote:
            self._remote.refresh(checkpoints)

    def exists(self) -> bool:
        """Return whether there is a run in the folder."""
        return is_file(self._config)

    def config(self) -> Json:
        """Return the content of config.json."""
        config = read_json(self._config, RESTORE, run_file)
        written_by = config.get("format")
        if type(written_by) is int and written_by > FORMAT:
            raise UserError(
                f"{self.where} was written by a newer Paceline (format {written_by}, this one "
                f"reads up to {FORMAT}); update Paceline, or use another --run-dir"
            )
        for name in ("experiment", "data", "versions", "code"):
            if not isinstance(config.get(name), dict):
                raise UserError(
                    f"{self._config} is damaged: {name} is not a JSON object; {RESTORE}"
                )
        return config

    def experiment(self) -> Experiment:
        """Return the run's experiment."""
        values = self.config()["experiment"]
        try:
            return Experiment.from_json(values)
        except (TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"{self._config} is damaged ({error}); {RESTORE}") from error
        except UserError as error:
            raise UserError(f"{self._config}: {error}") from error

    def data_facts(self) -> Json:
        """Return what is known of the run's data: sizes, image shape, classes."""
        from paceline.run_folder.comparison import Facts, check_types

        return check_types(Facts, self.config()["data"], self._config, RESTORE)

    def data_dir(self) -> str:
        """Return where the run's data is: where it was, or at the same relative path from here."""
        given, stored = self.experiment().data.dir, str(self.config().get("data_dir", ""))
        if not given or not stored or is_remote(stored):
            return given
        moved = not os.path.exists(stored) and os.path.exists(os.path.expanduser(given))
        return given if moved else stored

    def kernels(self) -> str:
        """Return which kernels the run was trained with: own or tensorflow."""
        return str(self.config().get("kernels", "tensorflow"))

    def write_result(self, result: Json) -> None:
        """Write and publish the result of this attempt; `finished` says whether it is the last."""
        self.check_lease()
        write_json(self._result, sealed(result))
        self.publish()

    def read_result(self) -> Json | None:
        """Return the result of the last attempt; None if none has ended yet."""
        if not is_file(self._result):
            return None
        from paceline.run_folder.comparison import StoredResult, check_types

        advice = "the command that trained it computes it again from the last checkpoint"
        found = read_json(self._result, advice, run_file)
        return check_types(StoredResult, found, self._result, advice)

    def write_predictions(self, arrays: Json) -> None:
        """Replace the predictions of the last evaluation, and images of its worst mistakes."""
        import numpy as np

        self.check_lease()
        with explained("write", self._predictions), replacing(self._predictions) as file:
            np.savez_compressed(file, **arrays)

    def read_predictions(self) -> Json | None:
        """Return what `write_predictions` wrote; None if there are none, or they are damaged."""
        from paceline.storage.array_files import parse_npz

        with explained("read", self._predictions):
            try:
                return retry(lambda: parse_npz(read_run_file(self._predictions)))
            except (FileNotFoundError, ValueError):
                return None

    def append_start(self, step: int, place: str, workers: int, engine: str = "") -> None:
        """Record that training starts or continues at this step, where, with how many workers."""
        now = {"step": step, "time": time.time(), "place": place, "workers": workers}
        now["engine"] = engine
        self.starts.append(now | {"machine": machine(), "versions": library_versions()})

    def make(self) -> None:
        """Make the folder. One with files of somebody else but no config.json is an error."""
        with explained("make", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            names = sorted(entry.name for entry in self.path.iterdir())
            for name in names:
                refuse_link(self.path / name)
        others = [name for name in names if not OWN_NAMES.match(name)]
        if others and not self.exists() and not self._remote:
            raise UserError(
                f"{self.where} is not a run folder: it has {others[0]} but no config.json; "
                "use a new or empty --run-dir"
            )

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Make the folder for a command; remove it if a UserError comes before config.json. A
        folder that another command's chief has locked stays. A later chief makes it again."""
        new = not os.path.exists(self.path)  # no error if the name is too long
        self.make()
        try:
            yield
        except UserError:
            if new and not self.exists():
                with suppress(UserError):
                    self._lock.acquire()
                    if not self.exists():
                        shutil.rmtree(self.path)
                    self._lock.release()
            raise


def default_path(recipe: str, experiment: Experiment, root: str | Path = "runs") -> str:
    """Return the folder of an experiment. It is always the same, so the same command resumes."""
    return f"{str(root).rstrip('/')}/{recipe}-{experiment.digest()}"


def is_default_path(path: str, experiment: Experiment) -> bool:
    """Return whether a folder of runs has its name from `default_path`, and not from a person."""
    return path.startswith("runs/") and path.endswith(f"-{experiment.digest()}")
