"""The run folder: which experiment it belongs to, who may write it, its metrics and its result.

It owns the names of the files in a run folder and the way they are written: whole or not at all. What is inside a checkpoint
belongs to `training.checkpoint`, what is inside the events to `training.actions`. Only the chief opens and writes a run folder;
every command may read one. All access to the disk is in the functions at the end of this file. Of a folder on remote storage
`path` is the local side (`mirror`).
"""

from __future__ import annotations

import atexit
import fcntl
import json
import math
import os
import platform
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from paceline.config.experiment import Experiment, differences
from paceline.errors import UserError, did_you_mean
from paceline.messages import Send
from paceline.run_folder.remote import Mirror
from paceline.run_folder.storage import Store, cached, is_remote

FORMAT = 1
"""Of config.json; a number above it was written by a newer Paceline."""


class RunFolder:
    """One training's folder, `where` the person said: on a disk, or by its URL. Building one touches neither disk nor network."""

    def __init__(self, path: str | Path) -> None:
        self.path = cached("runs", str(path)) if is_remote(path) else Path(path)
        self.where = str(path).rstrip("/") if is_remote(path) else str(self.path)
        self._mirror = Mirror(self.where, self.path) if is_remote(path) else None
        self.events = self.path / "events"
        self.evaluator_events = self.events / "evaluator"
        self.checkpoints = self.path / "checkpoints"
        self._config, self._metrics = self.path / "config.json", self.path / "metrics.jsonl"
        self._result, self._lock = self.path / "result.json", self.path / "lock"
        self._evaluations = self.path / "evaluations.jsonl"
        self._starts, self._evaluation = self.path / "starts.jsonl", self.path / "evaluation.npz"
        self._lock_handle: int | None = None

    def __repr__(self) -> str:
        return f"RunFolder({self.where!r})"

    def log(self, name: str) -> Path:
        """Of a process of the run: worker-0.log, ps-1.log ..."""
        return self.path / f"{name.replace(' ', '-')}.log"

    def lock(self, wait_s: float = 3.0, send: Send = lambda message: None) -> None:
        """Keep every other process out for as long as this one lives, or until `unlock`. A remote folder is then pulled."""
        self.make()
        with explained("lock", self._lock):
            # A bare descriptor: the garbage collector does not close it, and started programs do not inherit it.
            handle = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
            if not _flock(handle, wait_s):
                pid, host = (_holder(self._lock).get(name, "unknown") for name in ("pid", "host"))
                os.close(handle)
                raise UserError(
                    f"another process (pid {pid} on host {host}) is training in {self.where}; wait until it ends, or stop it"
                )
            earlier = _holder(self._lock)
            os.ftruncate(handle, 0)
            holder = {"pid": os.getpid(), "host": socket.gethostname()} | (
                {"token": self._mirror.token} if self._mirror else {}
            )
            os.pwrite(handle, json.dumps(holder).encode(), 0)
        self._lock_handle = handle
        if self._mirror:
            self._mirror.lock(earlier.get("token", ""), send)
            self._mirror.pull()

    def unlock(self) -> None:
        """Let others in; needed by a process that goes on after its training, and wherever the folder is remote."""
        if self._mirror:
            self._mirror.unlock()
        if self._lock_handle is not None:
            os.close(self._lock_handle)
            self._lock_handle = None

    def is_locked(self) -> bool:
        """Whether a process trains here now."""
        if not self._lock.exists():
            return False
        with explained("look at", self._lock), open(self._lock) as file:
            return not _flock(file.fileno(), 0.0)  # if it was taken, closing the file lets go of it

    def open(self, experiment: Experiment, data_facts: dict[str, Any]) -> list[str]:
        """Make this the folder of the experiment, or check that it is. Answers which libraries changed since."""
        self.make()
        changed = []
        if self.exists():
            changed = self._compare(experiment, data_facts)
        else:
            versions = library_versions()
            write_json(
                self._config,
                {
                    "format": FORMAT,
                    "experiment": experiment.to_json(),
                    "data": data_facts,
                    "versions": versions,
                },
            )
        with explained("make the folders of", self.path):
            self.events.mkdir(exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
        if self._mirror:
            self._mirror.pull_checkpoints()
        self.publish()
        return changed

    def publish(self) -> None:
        """Bring a remote folder up to date: what was saved counts from now on. On a disk it did already."""
        if self._mirror:
            self._mirror.publish()

    def exists(self) -> bool:
        return self._config.exists()

    def config(self) -> dict[str, Any]:
        config = _read_json(self._config, "restore it from a copy, or use another --run-dir")
        if not isinstance(config.get("experiment"), dict) or not isinstance(
            config.get("format"), int
        ):
            raise UserError(
                f"{self._config} is damaged: it has no experiment; restore it from a copy, or use another --run-dir"
            )
        if config["format"] > FORMAT:
            raise UserError(
                f"{self.where} was written by a newer Paceline (format {config['format']}, this one knows {FORMAT}); "
                "update Paceline, or use another --run-dir"
            )
        return config

    def experiment(self) -> Experiment:
        """As it was given; fields that are newer than the folder have their defaults."""
        try:
            return Experiment.from_json(self.config()["experiment"])
        except (TypeError, AttributeError) as error:
            raise UserError(
                f"{self._config} is damaged ({error}); restore it from a copy, or use another --run-dir"
            ) from error

    def data_facts(self) -> dict[str, Any]:
        return self.config().get("data", {})

    def write_result(self, result: dict[str, Any]) -> None:
        assert "finished" in result, "a result says whether the run is finished"
        write_json(self._result, result)
        self.publish()

    def read_result(self) -> dict[str, Any] | None:
        """The result of the last attempt; None where none has ended yet."""
        return (
            _read_json(self._result, "train again to write it anew")
            if self._result.exists()
            else None
        )

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add one line; `record` has a `step`."""
        _append(self._metrics, record)

    def append_evaluation(self, record: dict[str, Any]) -> None:
        """Add one line to the evaluator's own file; the chief's evaluations are in its metrics."""
        _append(self._evaluations, record)

    def publish_evaluations(self) -> None:
        """The evaluator's own files, to a remote folder."""
        if self._mirror:
            own = [self._evaluations, *self.evaluator_events.glob("*")]
            self._mirror.add(
                [path.relative_to(self.path).as_posix() for path in own if path.exists()]
            )

    def refresh(self) -> None:
        """See what the chief has written meanwhile; on a disk that needs nothing."""
        if self._mirror:
            self._mirror.refresh()

    def read_evaluations(self) -> list[dict[str, Any]]:
        return _records(_read_text(self._evaluations))

    def append_start(self, step: int, place: str, workers: int) -> None:
        """Note that training starts, or starts again, at this step, with whom and where; never forgotten."""
        now = {"step": step, "time": time.time(), "place": place, "workers": workers}
        _append(self._starts, now | {"machine": machine(), "versions": library_versions()})

    def read_starts(self) -> list[dict[str, Any]]:
        return _records(_read_text(self._starts))

    def write_evaluation(self, arrays: dict[str, Any]) -> None:
        """What the model said of each example in its last evaluation, and the pictures of its worst mistakes."""
        import numpy as np

        with explained("write", self._evaluation), replacing(self._evaluation) as file:
            np.savez_compressed(file, **arrays)

    def read_evaluation(self) -> dict[str, Any] | None:
        """The arrays of the last evaluation; None where there was none, or none that is whole."""
        import zipfile

        import numpy as np

        try:
            with np.load(self._evaluation) as arrays:
                return dict(arrays)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return None

    def truncate_metrics(self, step: int) -> None:
        """Forget what lies beyond `step`, where training goes on, and a line that a crash cut short."""
        text = _read_text(self._metrics)
        kept = "".join(
            json.dumps(record) + "\n" for record in _records(text) if record["step"] <= step
        )
        if kept != text:
            with explained("write", self._metrics), replacing(self._metrics) as file:
                file.write(kept.encode())

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines; the last may be half written by a training that is under way."""
        return _records(_read_text(self._metrics))

    def make(self) -> None:
        """The folder itself; one with files but no config.json is somebody's own. Logs and the lock may come first."""
        with explained("make", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            names = sorted(entry.name for entry in self.path.iterdir())
        strangers = [
            name
            for name in names
            if name != self._lock.name
            and not re.match(r"\.|(worker-|ps-|chief|spark).*\.log$", name)
        ]
        if strangers and not self.exists() and not self._mirror:
            raise UserError(
                f"{self.where} is not a run folder: it has {strangers[0]} but no config.json; use a new or empty --run-dir"
            )

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Make the folder for an attempt; where a UserError ends it before anything began, nothing is left behind."""
        new = not self.path.exists()
        self.make()
        try:
            yield
        except UserError:
            if new and not self.exists():
                shutil.rmtree(self.path)
            raise

    def _compare(self, experiment: Experiment, data_facts: dict[str, Any]) -> list[str]:
        changed = differences(self.experiment().to_json(), experiment.to_json())
        if changed:
            raise UserError(
                f"{self.where} is the run of another experiment: {_short(changed)}; "
                "use another --run-dir, or the old settings to resume"
            )
        old = self.data_facts()
        known = {
            name: fact for name, fact in _plain(data_facts).items() if name in old
        }  # folders of older versions have fewer
        changed = [line.replace(": ", " ", 1) for line in differences(old, known)]
        if changed:
            raise UserError(
                f"{self.where} cannot go on, the data is not the same: {_short(changed)}; use another --run-dir"
            )
        return differences(self.config().get("versions", {}), library_versions())


def default_path(recipe: str, experiment: Experiment, root: str | Path = "runs") -> str | Path:
    """The same experiment has the same folder, so the same command resumes."""
    name = f"{recipe}-{experiment.digest()}"
    return f"{str(root).rstrip('/')}/{name}" if is_remote(root) else Path(root) / name


def all_runs(root: str | Path = "runs") -> list[RunFolder]:
    """Every run folder under `root`, by name; of remote ones a copy without checkpoints."""
    if is_remote(root):
        configs = [name.split("/") for name in Store(str(root)).files()]
        names = [parts[0] for parts in configs if len(parts) == 2 and parts[1] == "config.json"]
        return [_copy(f"{str(root).rstrip('/')}/{name}", checkpoints=False) for name in names]
    return [RunFolder(config.parent) for config in sorted(Path(root).glob("*/config.json"))]


def existing_run(
    path: str | Path, root: str | Path = "runs", checkpoints: bool = True
) -> RunFolder:
    """The run at `path`, or of that name under `root`, for commands that read one. Of a remote run it is a copy as of now, gone
    when this process ends; without `checkpoints` it is a small one."""
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
    hint = (
        did_you_mean(Path(path).name, names)
        if names
        else f"there are no runs in {root}; `paceline train` makes one"
    )
    raise UserError(f"no run in {path}; {hint}")


def watched_run(path: str | Path) -> RunFolder:
    """A run for who looks on while others train it, with `refresh`; it need not be there yet."""
    if not is_remote(path):
        return RunFolder(path)
    folder, run = _scratch(str(path))
    run._mirror = Mirror(run.where, folder)
    return run


def _copy(url: str, checkpoints: bool) -> RunFolder:
    folder, run = _scratch(url)
    mirror = Mirror(url, folder)
    mirror.pull()
    if checkpoints:
        mirror.pull_checkpoints()
    return run


def _scratch(url: str) -> tuple[Path, RunFolder]:
    """Apart from the local side of a training that may be under way on this machine; gone when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run = RunFolder(folder)
    run.where = url.rstrip("/")
    return folder, run


def library_versions() -> dict[str, str]:
    """What the bits of a run depend on besides its experiment."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("paceline", "tensorflow", "tensorflow-cpu", "keras", "numpy", "safetensors"):
        try:
            found[package.removesuffix("-cpu")] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Where this process runs, for people who compare speeds."""
    lines = _read_text(Path("/proc/cpuinfo")).splitlines()
    cpu = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "host": socket.gethostname(),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory, 1),
    }


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file whole or not at all: the old one stays until the new one is safe on disk. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(
                file.fileno(), 0o644
            )  # mkstemp's 0600 would hide runs on shared storage from colleagues
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is on disk too
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(_plain(value), indent=2, allow_nan=False) + "\n"
    with explained("write", path), replacing(path) as file:
        file.write(text.encode())


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """What the disk refuses is told in one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot {doing} {path}: {error.strerror or error}") from error


def _read_text(path: Path) -> str:
    with explained("read", path):
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _read_json(path: Path, advice: str) -> dict[str, Any]:
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {advice}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged (no JSON object); {advice}")
    return value


def _append(path: Path, record: dict[str, Any]) -> None:
    line = json.dumps(_plain(record), allow_nan=False) + "\n"
    with explained("write", path), open(path, "a", encoding="utf-8") as file:
        file.write(line)


def _records(text: str) -> list[dict[str, Any]]:
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def _plain(value: Any) -> Any:
    """As strict JSON has it: NumPy's numbers as Python's, and null for what is not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _short(lines: list[str], most: int = 5) -> str:
    shown = [line if len(line) <= 120 else line[:117] + "..." for line in lines[:most]]
    return ", ".join(shown) + (f" and {len(lines) - most} more" if len(lines) > most else "")


def _flock(handle: int, wait_s: float) -> bool:
    """Retried, because a process that was just killed may need a moment to let go."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)


def _holder(path: Path) -> dict[str, Any]:
    """What the last one to lock wrote; empty where that is nothing."""
    try:
        holder = json.loads(_read_text(path))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
