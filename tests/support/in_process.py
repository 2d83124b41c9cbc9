"""`paceline ...` inside the process of the tests: the same code, without the seconds that a new
process and its TensorFlow take.

Everything of the command is real, except that a worker is a thread, which cannot be killed. Tests
that kill, signal, limit or look at processes, and one or two tests of each command, use the real
program (`helpers.paceline`). Not a test itself.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import tensorflow  # noqa: F401  conftest.py sets its threads, if a test module has imported it
from keras.src.utils.naming import reset_uids

from helpers import Ended
from paceline import worker_process as main
from paceline.cli import commands
from paceline.engines import devices
from paceline.job import Job
from paceline.messages import Message, to_line
from paceline.supervise import process
from paceline.worker import Memory


def paceline_here(*arguments: str, cwd: Path, environment: dict[str, str] | None = None) -> Ended:
    """Run a command that needs at most one worker; return how it ended."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        workers_here(),
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, environment or {}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        os.environ.pop("COLUMNS", None)
        try:
            code = commands.main(arguments)
        except SystemExit as end:  # of --help
            code = int(end.code or 0)
    return Ended(code, *(each.buffer.getvalue().decode() for each in (out, err)))


@contextlib.contextmanager
def workers_here() -> Iterator[None]:
    """Within it, a worker is a thread of this process, also for `paceline.train`."""
    with (
        mock.patch.object(process, "start_process", _start),
        mock.patch.object(devices, "set_threads_and_memory", _check_threads),
        _new_imports_forgotten(),
    ):
        yield


def _check_threads(threads: int, lanes: int, gpus: object = None) -> None:
    """TensorFlow has its threads already, see conftest.py. With another number, other bits."""
    assert threads == 1, "an experiment of several threads needs a process of its own"


@contextlib.contextmanager
def _new_imports_forgotten() -> Iterator[None]:
    """Forget users' modules and Keras's counters of layer names, as a new process would."""
    path, modules = list(sys.path), set(sys.modules)
    reset_uids()
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if name.startswith("paceline_plugin_") or name == "own":
                del sys.modules[name]


def _start(job: Job, log: Path | None, *_: object, **__: object) -> tuple[ThreadAsProcess, int]:
    reader, writer = os.pipe()
    return ThreadAsProcess(job, log, writer), reader


class ThreadAsProcess:
    """Stands for the `subprocess.Popen` of a worker."""

    pid = -1

    def __init__(self, job: Job, log: Path | None, writer: int) -> None:
        alone = job.cluster.num_workers == 1 and not job.cluster.ps
        assert alone, "several workers or parameter servers need several processes"
        self.stdin = io.BytesIO()
        self._job, self._log, self._writer = job, log, writer
        self._stop, self._code = threading.Event(), 0
        if log:
            log.touch()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        lock = threading.Lock()
        with os.fdopen(self._writer, "w", buffering=1) as pipe:

            def send(message: Message) -> None:
                with lock:
                    pipe.write(to_line(message))

            with (
                open(self._log or os.devnull, "a") as log,
                mock.patch.object(main, "to_log", partial(print, file=log)),
            ):
                self._code = main.run(self._job, send, self._stop, Memory())

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._code

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("a thread", timeout or 0)
        return self._code

    def kill(self) -> None:
        self._stop.set()

    def send_signal(self, sig: int) -> None:
        self._stop.set()
