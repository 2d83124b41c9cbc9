"""What one task of the barrier stage does on its executor: it looks around, gathers addresses, starts a fresh worker process, and
passes on what that says to the driver and what the driver says to it. It decides nothing: the driver watches all workers.

A worker ends when its task does, and a task when its driver is gone; so nothing is left on any executor, whoever was killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark import BarrierTaskContext

from paceline.config.cluster import Cluster
from paceline.config.experiment import Data
from paceline.config.job import Job
from paceline.errors import UserError
from paceline.messages import Error, Exit, Log, Message, to_line
from paceline.places.process import start_worker

CONNECT_TIMEOUT_S = 30.0
LAST_WORDS_S = 10.0


@dataclass(frozen=True)
class Errand:
    """What every task is told."""

    job: dict[str, Any]
    driver: tuple[str, int]
    secret: str
    folder: str
    """Of the command; relative paths and modules of the user's own are found from there, where an executor has it."""
    proof: str
    """A new file of a random name in the run folder, which only a host that shares the folder can see; empty: no need."""


class Line:
    """The connection to the driver: JSON lines both ways. One that is broken takes everything and keeps nothing."""

    def __init__(self, connection: socket.socket) -> None:
        keep_alive(connection)
        self._lines, self._lock = connection.makefile("rwb"), threading.Lock()

    def send(self, message: Message) -> None:
        self.pass_on(to_line(message).encode())

    def pass_on(self, line: bytes) -> None:
        with self._lock:
            try:
                self._lines.write(line)
                self._lines.flush()
            except (OSError, ValueError):
                return  # whoever listens for commands notices, and ends the worker

    def commands(self) -> Iterator[dict[str, Any]]:
        try:
            for line in self._lines:
                yield json.loads(line)
        except (OSError, ValueError):
            return


def keep_alive(connection: socket.socket) -> None:
    """A peer whose host has vanished is noticed within half a minute."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def hang_up(connection: socket.socket) -> None:
    """Both sides are told, and every thread that waits for it, here too; closing it alone would not do that."""
    with suppress(OSError):  # it is gone already
        connection.shutdown(socket.SHUT_RDWR)


def run_task(errand: Errand, _: Iterator[int]) -> Iterator[int]:
    """One worker from its start to its end."""
    context = BarrierTaskContext.get()
    index = context.partitionId()
    host = context.getTaskInfos()[index].address.rsplit(":", 1)[0]
    try:
        connection = socket.create_connection(errand.driver, timeout=CONNECT_TIMEOUT_S)
    except OSError as error:
        driver = f"{errand.driver[0]}:{errand.driver[1]}"
        raise UserError(
            f"host {host} cannot reach the driver at {driver} ({error}); see spark.driver.host"
        ) from None
    with connection:
        line = Line(connection)
        hello = {"secret": errand.secret, "worker": index, "host": host}
        line.pass_on(json.dumps(hello).encode() + b"\n")
        folder = errand.folder if os.path.isdir(errand.folder) else os.getcwd()
        job = _meet(errand, context, index, host, folder, line)
        line.send(Exit(_run_worker(job, line, folder, context) if job else 0))
        hang_up(connection)  # the thread that listens for commands holds it, too
    return iter(())


def _meet(
    errand: Errand, context: BarrierTaskContext, index: int, host: str, folder: str, line: Line
) -> Job | None:
    """The job of this worker, or None where one of the hosts lacks something; everyone then tells the same."""
    job = Job.from_json(errand.job)
    with (
        socket.socket() as port
    ):  # held until everyone has one, lest neighbours get the same; TensorFlow then takes it
        port.bind(("", 0))
        own = {
            "address": f"{host}:{port.getsockname()[1]}",
            "problem": _problem(job.experiment.data, folder, host)
            or (proof_problem(errand.proof, host) if index == 0 else ""),
        }
        everyone = [json.loads(text) for text in context.allGather(json.dumps(own))]
    problems = [other["problem"] for other in everyone if other["problem"]]
    if problems:
        line.send(Error(problems[0]))
        return None
    addresses = tuple(other["address"] for other in everyone) if len(everyone) > 1 else ()
    return replace(
        job,
        cluster=Cluster(addresses, index),
        place=replace(job.place, on="spark", cores=job.place.cores or context.cpus()),
    )


def _problem(data: Data, folder: str, host: str) -> str:
    reads_files = data.dir and "://" not in data.dir and (data.build or data.source != "shapes")
    where = Path(folder, data.dir).expanduser()
    if not reads_files or os.access(where, os.R_OK | os.X_OK):
        return ""
    return f"host {host} cannot read the data folder {where}; put the data where every executor sees them, under one path"


def proof_problem(proof: str, host: str) -> str:
    if not proof or os.path.exists(proof):
        return ""
    return f"host {host}, which has the chief, does not share {Path(proof).parent} with the driver; give a --run-dir that both see"


def _run_worker(job: Job, line: Line, folder: str, context: BarrierTaskContext) -> int:
    """Start the worker and pass everything on until it has ended; its exit code."""
    log, log_writer = os.pipe()
    process, messages = start_worker(job, log_writer, folder, _environment(context))
    assert process.stdin
    threading.Thread(target=_obey, args=(line, process), daemon=True).start()
    readers = ((_pass_messages, messages), (_pass_log, log))
    passing = [
        threading.Thread(target=target, args=(reader, line), daemon=True)
        for target, reader in readers
    ]
    for thread in passing:
        thread.start()
    code = process.wait()
    for thread in passing:
        thread.join(LAST_WORDS_S)
    process.stdin.close()
    return code


def _obey(line: Line, process: subprocess.Popen[bytes]) -> None:
    """The driver's signals; without a driver there is nobody to work for."""
    for command in line.commands():
        process.send_signal(command["signal"])
    process.send_signal(signal.SIGKILL)


def _pass_messages(reader: int, line: Line) -> None:
    with os.fdopen(reader, "rb") as messages:
        for message in messages:
            line.pass_on(message)


def _pass_log(reader: int, line: Line) -> None:
    with os.fdopen(reader, "rb", buffering=0) as log:
        while text := log.read(65536):
            line.send(Log(text.decode(errors="replace")))


def _environment(context: BarrierTaskContext) -> dict[str, str]:
    """What a worker inherits: whatever Spark shipped (its paths are relative to the executor's folder), and its GPUs."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    }
    if gpus := context.resources().get("gpu"):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.addresses)
    return environment
