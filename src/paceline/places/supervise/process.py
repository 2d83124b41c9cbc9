"""One worker process under this one: how it is started, and what a group needs of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Protocol

from paceline.job import Job
from paceline.messages import MESSAGES
from paceline.places.supervise.descendants import MARK, new_mark


class Process(Protocol):
    """What a group needs of a worker: `subprocess.Popen`, or what behaves like it."""

    stdin: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...

    def send_signal(self, sig: int) -> None: ...


StartProcess = Callable[[Job, Path | None], tuple[Process, int]]
"""Starts a worker; returns it and the file descriptor from which its messages are read."""


def exit_reason(process: Process) -> str:
    """Return why a process ended that did not end well."""
    code = process.wait()
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else ""


class WorkerProcess(subprocess.Popen[bytes]):
    """A worker on this machine."""

    mark = ""
    """That of its family, by which its descendants are found."""


def close_stdin(process: Process) -> None:
    assert process.stdin
    process.stdin.close()


def start_worker(
    job: Job,
    log: Path | int | None,
    folder: str | None = None,
    environment: Mapping[str, str] = os.environ,
    passed: Sequence[int] = (),
) -> tuple[WorkerProcess, int]:
    """Start a worker in its own session, so that a Ctrl-C reaches only this process.

    A file descriptor that is given as log is closed here. Those of `passed` stay open in both.
    """
    reader, writer = os.pipe()
    mark = new_mark(environment)
    with nullcontext(sys.stderr) if log is None else open(log, "ab") as log_file:
        process = WorkerProcess(
            [sys.executable, "-m", "paceline.worker_process"],
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=log_file,
            pass_fds=[writer, *passed],
            cwd=folder,
            env={**environment, MARK: mark, MESSAGES: str(writer), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    process.mark = mark
    os.close(writer)
    assert process.stdin
    process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
    process.stdin.flush()
    return process, reader
