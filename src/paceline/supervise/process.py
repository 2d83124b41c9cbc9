"""A worker process of this machine: its start, its messages, and its end with all descendants.

A worker leads a session and has a mark in its environment. Its descendants inherit both, even if
their parents have ended. Some start their own session, and daemons of Ray overwrite their
environment with their names.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from paceline.job import Job
from paceline.messages import MESSAGES, NEIGHBORS, Message, from_line
from paceline.storage.files import run_file

EXIT_S = 30.0

MARK = "PACELINE_FAMILY"
"""Environment variable with the marks of a worker and of its ancestors, separated by slashes."""


class LocalWorker:
    """A worker process of this machine, which ends when this one does; its log may be stderr."""

    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, job: Job, log: Path | None, connections: Sequence[int] = ()) -> None:
        self.job = job
        self.log = log
        self._connections = connections

    def start(self) -> None:
        """Start the process; a worker that has ended is started again."""
        if self._process:
            self.end()
        self._mark = new_mark(os.environ)
        environment = {**os.environ, MARK: self._mark}
        if self._connections:
            environment[NEIGHBORS] = ",".join(map(str, self._connections))
        self._process, self._reader = start_process(
            self.job, self.log, environment, passed=self._connections
        )
        self._close_connections()

    def messages(self) -> Iterator[Message]:
        with os.fdopen(self._reader) as lines:
            for line in lines:
                with suppress(ValueError):  # the last line of a killed process may be incomplete
                    yield from_line(line)

    def poll(self) -> int | None:
        return self._process.poll() if self._process else 0

    def wait(self) -> int:
        assert self._process
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(EXIT_S)
        self._process.kill()
        return self._process.wait()

    def send_signal(self, number: int) -> None:
        assert self._process
        self._process.send_signal(number)

    def ask(self, request: str, **facts: int) -> None:
        assert self._process
        write_line(self._process, json.dumps({"request": request} | facts).encode() + b"\n")

    def end(self) -> None:
        self._close_connections()
        if self._process:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin
            self._process.stdin.close()
            end_descendants(self._process.pid, self._mark)

    def _close_connections(self) -> None:
        for handle in self._connections:
            os.close(handle)
        self._connections = ()


def start_process(
    job: Job,
    log: Path | int | None,
    environment: Mapping[str, str],
    folder: str | None = None,
    passed: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a worker in its own session, so that a Ctrl-C reaches only this process.

    Return the process and the descriptor of its messages. A descriptor `log` is closed here.
    """
    reader, writer = os.pipe()
    with nullcontext(sys.stderr) if log is None else open(log, "ab", opener=run_file) as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.worker_process"],
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=log_file,
            pass_fds=[writer, *passed],
            cwd=folder,
            env={**environment, MESSAGES: str(writer), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    os.close(writer)
    write_line(process, json.dumps(job.to_json()).encode() + b"\n")
    return process, reader


def write_line(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Write a line to a worker's standard input, unless it has ended."""
    assert process.stdin
    with suppress(OSError, ValueError):
        process.stdin.write(line)
        process.stdin.flush()


def new_mark(environment: Mapping[str, str]) -> str:
    """Return the value of MARK for a worker that is started with an environment."""
    return f"{environment.get(MARK, '')}/{uuid.uuid4().hex}"


def end_descendants(pid: int, mark: str) -> None:
    """Kill a worker's descendants: daemons of Ray would outlive a killed driver by a minute."""
    marked = f"\0{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        with suppress(ValueError, OSError):  # not a process, or it has ended
            other = int(name)
            variables = b"\0" + Path(f"/proc/{other}/environ").read_bytes()
            if other != os.getpid() and (os.getsid(other) == pid or marked in variables):
                os.kill(other, signal.SIGKILL)
