"""The real program in real processes: started, interrupted, and shown to leave nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
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

OWN_CODE = '''
"""Actions, a model and a data source of a user's own."""
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent


def wait_for_a_signal(step, metrics):
    """Wait after the first block for a SIGTERM; what else it does continues."""
    if (HERE / "reached").exists():
        return
    handler, received = signal.getsignal(signal.SIGTERM), []
    signal.signal(signal.SIGTERM, lambda *signal: (received.append(signal), handler(*signal)))
    (HERE / "reached").write_text(str(step))
    while not received:
        time.sleep(0.02)


def kill_before_the_next_rename(step, metrics):
    """End the process when the next checkpoint is on disk, but not yet under its name."""
    rename = os.replace

    def die(source, target):
        if "checkpoints" in str(target):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    os.replace = die


def kill_in_the_middle_of_the_next_write(step, metrics):
    """Half of the next checkpoint is in its file when the process is gone."""
    from paceline.run_folder import checkpoints as checkpoint

    replacing = checkpoint.replacing

    @contextmanager
    def dying(path):
        with replacing(path) as file:
            yield SimpleNamespace(write=lambda content: write_half(file, content))

    def write_half(file, content):
        file.write(content[: len(content) // 2])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.replacing = dying


def kill_at_the_end(step, metrics):
    if step == 24:
        os.kill(os.getpid(), signal.SIGKILL)


def write_down(step, metrics):
    with open(HERE / "written-down.txt", "a") as file:
        print(step, round(metrics["loss"], 4), file=file)


def forget(step, metrics):
    return {}["nothing here"]


def build_model(image_shape, num_classes, softmax=False):
    import keras

    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(4, 3, strides=4, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.1),
            keras.layers.Flatten(),
            keras.layers.Dense(num_classes, activation="softmax" if softmax else None),
        ]
    )


def build_model_with_probabilities(image_shape, num_classes):
    return build_model(image_shape, num_classes, softmax=True)


def build_model_of_wrong_shape(image_shape, num_classes):
    return build_model(image_shape, num_classes + 1)


def build_data(data):
    import numpy as np
    from paceline.data.source import Source
    from paceline.data.source import in_memory

    labels = np.arange(96, dtype=np.int32) % 3
    images = np.repeat(labels * 80, 8 * 8 * 3).reshape(96, 8, 8, 3).astype(np.uint8)
    train, test = in_memory(images, labels), in_memory(images[:7], labels[:7])
    return Source(train, test, ("dark", "grey", "bright"), (8, 8, 3))
'''


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
            [
                *inside,
                *command,
                *(argument.replace("{mark}", self._mark) for argument in arguments),
            ],
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
            for pid in _all_pids()
            if f"{MARK}={self._mark}".encode() in _read(f"/proc/{pid}/environ").split(b"\0")
        ]

    def workers(self) -> list[int]:
        """In the order in which they were started.

        A child that a worker has just forked still shows the worker's command: it is left out.
        """
        pids = self.find("paceline.worker")
        return [pid for pid in pids if _parent(pid) not in pids]

    def worker(self) -> int:
        (pid,) = self.workers()
        return pid

    def find(self, text: str) -> list[int]:
        """Those of its processes whose command has this text."""
        return sorted(
            pid for pid in self.processes() if text.encode() in _read(f"/proc/{pid}/cmdline")
        )

    def wait_until_gone(self, timeout_s: float) -> None:
        try:
            wait_until(lambda: not self.processes(), timeout_s, "processes are left")
        except AssertionError as error:
            commands = [_read(f"/proc/{pid}/cmdline")[:120] for pid in self.processes()]
            raise AssertionError(f"processes are left: {commands}") from error


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
    return {
        "TF_CONFIG": json.dumps(
            {"cluster": cluster, "task": {"type": role, "index": index}, "model_dir": model_dir}
        )
    }


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


def uninterrupted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `train smoke` that nobody stopped."""

    def make(folder: Path) -> None:
        assert paceline("train", "smoke", "--run-dir", "run", cwd=folder).code == 0

    return once_per_session(tmp_path_factory, "uninterrupted", make) / "run"


def stopped_run(tmp_path_factory: pytest.TempPathFactory, workers: int = 1) -> Path:
    """Return the folder of one that was stopped in its first epoch, with checkpoints 4 and 5."""

    def make(folder: Path) -> None:
        flags = ("--run-dir", "run", "--stop-at", "5", "--workers", str(workers))
        assert paceline("train", "smoke", *flags, cwd=folder).code == 0

    return once_per_session(tmp_path_factory, f"stopped-at-5-{workers}", make) / "run"


WEIGHTS = ("--sync.method", "weights", "--sync.every", "3", "--epochs", "1.25")


def averaged_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `train smoke` that averages weights, WEIGHTS, in one process."""

    def make(folder: Path) -> None:
        assert paceline("train", "smoke", "--run-dir", "run", *WEIGHTS, cwd=folder).code == 0

    return once_per_session(tmp_path_factory, "averaged", make) / "run"


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
    ours = ("TF_", "PYTEST_", "COV_", "COLUMNS")
    return {
        name: value
        for name, value in os.environ.items()
        if name == "TF_CONFIG" or not name.startswith(ours)
    }


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
