"""One task of the barrier stage, on its executor: it starts a worker process.

It checks the host and exchanges addresses with the other tasks. Then it passes messages and the log
to the driver, and signals and requests to the worker. It decides nothing: the driver watches all
workers. A worker ends when its task does, and a task when its driver is gone, so nothing is left on
any executor.
"""

from __future__ import annotations

import json
import os
import select
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

from paceline.cluster import Cluster
from paceline.descendants import MARK, new_mark
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.job import Job
from paceline.messages import Error, Exit, Log, Message, to_line
from paceline.places.spark.connection import Connection
from paceline.places.supervise.process import start_process

CONNECT_TIMEOUT_S = 30.0
LAST_MESSAGES_S = 10.0


@dataclass(frozen=True)
class Assignment:
    """What every task gets from the driver."""

    job: dict[str, Any]
    driver: tuple[str, int]
    secret: str
    folder: str
    """The command's working folder. Relative paths start there if the executor sees it."""
    proof: str
    """A new file in the run folder, which shows whether a host sees the folder; or empty."""


def run_task(assignment: Assignment, _: Iterator[int]) -> Iterator[int]:
    """Run one worker from its start to its end."""
    context = BarrierTaskContext.get()
    index = context.partitionId()
    host = context.getTaskInfos()[index].address.rsplit(":", 1)[0]
    folder = assignment.folder if os.path.isdir(assignment.folder) else os.getcwd()
    with _connect(assignment.driver, host) as connection:
        driver, code = Connection(connection), 0
        hello = {"secret": assignment.secret, "worker": index, "host": host}
        driver.write(json.dumps(hello).encode() + b"\n")
        try:
            job = _exchange_addresses(assignment, context, host, folder)
            code = _run_worker(job, driver, folder, context)
        except UserError as error:
            _send(driver, Error(str(error)))
        _send(driver, Exit(code))
        driver.shut_down()  # the thread that reads commands holds it, too
    return iter(())


def _connect(driver: tuple[str, int], host: str) -> socket.socket:
    try:
        return socket.create_connection(driver, timeout=CONNECT_TIMEOUT_S)
    except OSError as error:
        raise UserError(
            f"host {host} cannot reach the driver at {driver[0]}:{driver[1]} ({error}); "
            "see spark.driver.host"
        ) from None


def _send(driver: Connection, message: Message) -> None:
    driver.write(to_line(message).encode())


def _exchange_addresses(
    assignment: Assignment, context: BarrierTaskContext, host: str, folder: str
) -> Job:
    """Return the job of this worker; raise the same UserError on all hosts if one lacks a file."""
    job, index = Job.from_json(assignment.job), context.partitionId()
    problem = _problem(job.experiment.data, folder, host)
    if index == 0:
        problem = problem or proof_problem(assignment.proof, host)
    # the port is held until every task has one, so that no two of a host get the same
    with socket.socket() as port:
        port.bind(("", 0))
        own = (f"{host}:{port.getsockname()[1]}", problem)
        everyone = [json.loads(text) for text in context.allGather(json.dumps(own))]
    if problems := [problem for _, problem in everyone if problem]:
        raise UserError(problems[0])
    addresses = tuple(address for address, _ in everyone) if len(everyone) > 1 else ()
    place = replace(job.place, cores=job.place.cores or context.cpus())
    return replace(job, cluster=Cluster(addresses, index), place=place)


def _problem(data: Data, folder: str, host: str) -> str:
    reads_files = data.dir and "://" not in data.dir and (data.build or data.source != "shapes")
    where = Path(folder, data.dir).expanduser()
    if not reads_files or os.access(where, os.R_OK | os.X_OK):
        return ""
    return (
        f"host {host} cannot read the data folder {where}; "
        "put the data where every executor sees them, under one path"
    )


def proof_problem(proof: str, host: str) -> str:
    if not proof or os.path.exists(proof):
        return ""
    return (
        f"host {host}, which has the chief, does not share {Path(proof).parent} with the driver; "
        "give a --run-dir that both see"
    )


def _run_worker(job: Job, driver: Connection, folder: str, context: BarrierTaskContext) -> int:
    """Start the worker and pass everything on until it has ended; return its exit code."""
    log, log_writer = os.pipe()
    process, messages = start_process(job, log_writer, _environment(context), folder)
    assert process.stdin
    threading.Thread(target=_forward_commands, args=(driver, process), daemon=True).start()
    passing = threading.Thread(target=_pass_on, args=(messages, log, driver), daemon=True)
    passing.start()
    code = process.wait()
    passing.join(LAST_MESSAGES_S)
    process.stdin.close()
    return code


def _forward_commands(driver: Connection, process: subprocess.Popen[bytes]) -> None:
    """Pass the driver's signals and requests on; kill the worker when the driver is gone."""
    assert process.stdin
    for line in driver.lines():
        command = json.loads(line)
        if "signal" in command:
            process.send_signal(command["signal"])
        else:
            with suppress(OSError, ValueError):  # the worker has ended meanwhile
                process.stdin.write(line)
                process.stdin.flush()
    process.send_signal(signal.SIGKILL)


def _pass_on(messages: int, log: int, driver: Connection) -> None:
    """Pass messages and log on until both have ended; the log comes before later messages.

    A driver that gets an error ends its tasks; the traceback in the log must be there by then.
    """
    os.set_blocking(log, False)
    opened, begun = {messages, log}, b""
    while opened:
        ready, _, _ = select.select(opened, [], [])
        content = os.read(messages, 65536) if messages in ready else b""
        if log in opened and not _pass_log(log, driver):
            opened.discard(log)
        *lines, begun = (begun + content).split(b"\n")
        for line in lines:
            driver.write(line + b"\n")
        if messages in ready and not content:
            opened.discard(messages)
    os.close(messages)
    os.close(log)


def _pass_log(log: int, driver: Connection) -> bool:
    """Pass on what the log has now; return whether more may come."""
    try:
        while text := os.read(log, 65536):
            _send(driver, Log(text.decode(errors="replace")))
    except BlockingIOError:
        return True
    return False


def _environment(context: BarrierTaskContext) -> dict[str, str]:
    """Return the environment of a worker: absolute paths of what Spark shipped, and its GPUs."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path),
        MARK: new_mark(os.environ),
    }
    if gpus := context.resources().get("gpu"):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.addresses)
    return environment
