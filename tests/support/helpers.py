"""The real program in real processes: started, interrupted, and shown to leave nothing behind."""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.storage.files import unsealed

# of one program; generous, because other tests share the cores
TIMEOUT_S = float(os.environ.get("PACELINE_TEST_TIMEOUT_S", "120"))
SOON_S = 30.0  # "at once", for processes that share the cores with other tests
FIRST_PORT, NUM_PORTS = 20_000, 12_000
SUPPORT = Path(__file__).parent  # helpers, and programs that tests start
MARK = "PACELINE_TEST_MARK"  # environment variable by which all processes of a program are found

OWN_CODE = (SUPPORT / "own_code.py").read_text()


def write_own_code(folder: Path) -> Path:
    file = folder / "own.py"
    file.write_text(OWN_CODE)
    return file


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> dict[str, str]:
        """The last line of `train`, name by name."""
        return dict(word.split("=", 1) for word in self.out.splitlines()[-1].split("  "))


class Program:
    """A running `paceline` in its own process group.

    `{mark}` in an argument marks processes that others start for it.
    """

    def __init__(
        self,
        arguments: list[str],
        cwd: Path,
        environment: dict[str, str] | None = None,
        inside: tuple[str, ...] = (),
        command: tuple[str, ...] = (sys.executable, "-m", "paceline"),
    ) -> None:
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [*inside, *command, *(each.replace("{mark}", self._mark) for each in arguments)],
            cwd=cwd,
            env=_clean_environment() | (environment or {}) | {MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait(self, timeout_s: float = TIMEOUT_S) -> Ended:
        out, err = self._process.communicate(timeout=timeout_s)
        return Ended(self._process.returncode, out, err)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[int]:
        """The program and all that it started; those that ended already are not among them."""
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if f"{MARK}={self._mark}".encode() in _read(f"/proc/{pid}/environ").split(b"\0")
        ]

    def workers(self) -> list[int]:
        """In the order in which they were started.

        A child that a worker has just forked still shows the worker's command: it is left out.
        """
        pids = self.find("paceline.worker")
        stats = {pid: _read(f"/proc/{pid}/stat").rpartition(b")")[2].split() for pid in pids}
        return [pid for pid in pids if stats[pid] and int(stats[pid][1]) not in pids]

    def worker(self) -> int:
        (pid,) = self.workers()
        return pid

    def find(self, text: str) -> list[int]:
        """Those of its processes whose command has this text."""
        return sorted(
            pid for pid in self.processes() if text.encode() in _read(f"/proc/{pid}/cmdline")
        )

    def wait_until_gone(self, timeout_s: float) -> None:
        with suppress(AssertionError):
            wait_until(lambda: not self.processes(), timeout_s)
        commands = [_read(f"/proc/{pid}/cmdline")[:120] for pid in self.processes()]
        assert not commands, "processes are left"


@contextmanager
def program(*arguments: str, cwd: Path, **settings: Any) -> Iterator[Program]:
    """Start `paceline ...`, by the command `inside` if it is given; fail if a process is left."""
    running = Program(list(arguments), cwd, **settings)
    try:
        yield running
        running.wait_until_gone(SOON_S)
    finally:
        for pid in running.processes():
            os.kill(pid, signal.SIGKILL)


def paceline(*arguments: str, cwd: Path, timeout_s: float = TIMEOUT_S, **settings: Any) -> Ended:
    with program(*arguments, cwd=cwd, **settings) as running:
        return running.wait(timeout_s)


def wait_until(
    happened: Callable[[], Any], timeout_s: float = TIMEOUT_S, complaint: str = "it never happened"
) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


def free_addresses(count: int) -> list[str]:
    """Return addresses of this machine that nobody has, and that nobody else is given.

    They are below the ports that the system gives to programs that ask for any. All processes of
    the tests count on in one file, so that no two of them get the same.
    """
    found = list[str]()
    with open(Path(tempfile.gettempdir()) / "paceline-test-ports", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = int(file.read() or 0)
        while len(found) < count:
            number += 1
            port = FIRST_PORT + number % NUM_PORTS
            with socket.socket() as each, suppress(OSError):
                each.bind(("", port))
                found.append(f"127.0.0.1:{port}")
        file.truncate(0)
        file.write(str(number))
    return found


def free_port() -> int:
    return int(free_addresses(1)[0].rpartition(":")[2])


def tf_config(
    cluster: dict[str, list[str]], role: str, index: int = 0, model_dir: str = "run"
) -> dict[str, str]:
    """The environment of one task."""
    task = {"type": role, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "model_dir": model_dir})}


def once_per_session(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Path:
    """Return a folder that one process of pytest-xdist makes for all; copy it to change it."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, done = root / name, root / f"{name}.done"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


WEIGHTS = ("--sync.method", "weights", "--sync.every", "3", "--epochs", "1.25")


def assert_refused(ended: Ended, *parts: str) -> None:
    """Assert that a person's mistake was answered with exit code 2 and one line."""
    assert ended.code == 2, ended
    assert ended.err.startswith("paceline: "), ended
    assert ended.err.count("\n") == 1, ended.err
    for part in parts:
        assert part in ended.err
    assert "Traceback" not in ended.out + ended.err


def fine(ended: Ended) -> Ended:
    """Return how the command ended, which must be without an error."""
    assert ended.code == 0, ended
    return ended


def train_smoke(folder: Path, name: str, *flags: str, **settings: Any) -> Ended:
    return paceline("train", "smoke", "--run-dir", name, *flags, cwd=folder, **settings)


def digest_of(folder: Path, name: str, *flags: str, **settings: Any) -> str:
    """Return the digest of a `train smoke` with these flags."""
    fine(train_smoke(folder, name, *flags, **settings))
    return result_of(folder / name)["state_sha256"]


def files_in(folder: Path) -> set[str]:
    """Return everything in a folder but Python's caches."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in names if "__pycache__" not in name}


def result_of(run: Path) -> dict[str, Any]:
    return unsealed(json.loads((run / "result.json").read_text()))


def metrics_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [unsealed(json.loads(line)) for line in lines]


def losses_of(run: Path, tag: str = "loss") -> list[tuple[int, float]]:
    """Step and loss of every step, as TensorBoard shows them; or another of its scalars."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # With a module of this name tensorboard reads files itself and does not import TensorFlow.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    events = EventAccumulator(str(run / "events"), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def _clean_environment() -> dict[str, str]:
    """Return the environment of a user, without pytest's settings for TensorFlow and workers."""
    ours = re.compile("TF_(?!CONFIG)|PYTEST_|COV_|COLUMNS")
    return {name: value for name, value in os.environ.items() if not ours.match(name)}


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
