"""One task of the barrier stage, on its executor: it starts a worker process.

It checks the host and exchanges addresses with the other tasks. Then it passes messages and the log
to the driver, and signals and requests to the worker. It decides nothing: the driver watches all
workers. A worker ends when its task does, and a task when its driver is gone, so nothing is left on
any executor. Task and driver exchange lines of JSON.
"""

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

from pyspark import BarrierTaskContext

from paceline.engines.probe import keep_alive
from paceline.errors import UserError
from paceline.experiment.fields import Json
from paceline.job import Cluster, Job
from paceline.messages import TOKEN, Error, Message, to_line
from paceline.supervise.process import MARK, new_mark, start_process, write_line

CONNECT_TIMEOUT_S = 30.0
LAST_MESSAGES_S = 10.0


@dataclass(frozen=True)
class Log(Message):
    """Lines of a worker's log."""

    text: str


@dataclass(frozen=True)
class Exit(Message):
    """A worker has ended."""

    code: int


class Connection:
    """One side. If the other side is gone, lines are dropped, and reading ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rwb")
        self._lock = threading.Lock()
        connection.settimeout(None)
        keep_alive(connection)

    def send(self, message: Message) -> None:
        self.write(to_line(message).encode())

    def write(self, line: bytes) -> None:
        with self._lock, suppress(OSError, ValueError):
            self._file.write(line)
            self._file.flush()

    def read_first(self, timeout_s: float) -> bytes:
        """Return the first line, of a limited length; raise OSError after the timeout."""
        self._socket.settimeout(timeout_s)
        line = self._file.readline(4096)
        self._socket.settimeout(None)
        return line

    def lines(self) -> Iterator[bytes]:
        with suppress(OSError, ValueError):
            yield from self._file

    def shut_down(self) -> None:
        """End the connection for both sides and for every thread that waits; close would not."""
        with suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)


def run_task(
    job: Json, driver: tuple[str, int], secret: str, folder: str, proof: str, _: object
) -> Iterator[int]:
    """Run one worker from its start to its end.

    Relative paths start at the command's working `folder` if the executor sees it. `proof` is a new
    file in the run folder, which shows whether a host sees that; or empty.
    """
    context = BarrierTaskContext.get()
    index = context.partitionId()
    host = context.getTaskInfos()[index].address.rsplit(":", 1)[0]
    folder = folder if os.path.isdir(folder) else os.getcwd()
    try:
        connection = socket.create_connection(driver, timeout=CONNECT_TIMEOUT_S)
    except OSError as error:
        raise UserError(
            f"host {host} cannot reach the driver at {driver[0]}:{driver[1]} ({error}); "
            "see spark.driver.host"
        ) from None
    with connection:
        line, code = Connection(connection), 0
        hello = {"secret": secret, "worker": index, "host": host}
        line.write(json.dumps(hello).encode() + b"\n")
        try:
            own = Job.from_json(job)
            problem = find_problem(own, folder, proof if index == 0 else "", host)
            own = _exchange_addresses(own, problem, context, host)
            code = _run_worker(own, line, folder, secret)
        except UserError as error:
            line.send(Error(str(error)))
        line.send(Exit(code))
        line.shut_down()  # the thread that reads commands holds it, too
    return iter(())


def find_problem(job: Job, folder: str, proof: str, host: str) -> str:
    """Return what a host does not see, or nothing."""
    data = job.experiment.data
    reads_files = data.dir and "://" not in data.dir and (data.build or data.source != "shapes")
    where = Path(folder, data.dir).expanduser()
    if reads_files and not os.access(where, os.R_OK | os.X_OK):
        return (
            f"host {host} cannot read the data folder {where}; "
            "put the data where every executor sees them, under one path"
        )
    if proof and not os.path.exists(proof):
        return (
            f"host {host}, which has the chief, does not share {Path(proof).parent} with the "
            "driver; pass a --run-dir that both see"
        )
    return ""


def _exchange_addresses(job: Job, problem: str, context: BarrierTaskContext, host: str) -> Job:
    """Return the job of this worker; raise the same UserError on all hosts if one has a problem."""
    # the port is held until every task has one, so that no two of a host get the same
    with socket.socket() as port:
        port.bind(("", 0))
        own = (f"{host}:{port.getsockname()[1]}", problem)
        everyone = [json.loads(text) for text in context.allGather(json.dumps(own))]
    if problems := [problem for _, problem in everyone if problem]:
        raise UserError(problems[0])
    addresses = tuple(address for address, _ in everyone) if len(everyone) > 1 else ()
    place = replace(job.place, cores=job.place.cores or context.cpus())
    return replace(job, cluster=Cluster(addresses, context.partitionId()), place=place)


def _run_worker(job: Job, driver: Connection, folder: str, secret: str) -> int:
    """Start the worker and pass everything on until it has ended; return its exit code."""
    # absolute paths of what Spark shipped
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths, MARK: new_mark(os.environ), TOKEN: secret}
    if gpus := BarrierTaskContext.get().resources().get("gpu"):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.addresses)
    log, log_writer = os.pipe()
    process, messages = start_process(job, log_writer, environment, folder)
    threading.Thread(target=_forward_commands, args=(driver, process), daemon=True).start()
    passing = threading.Thread(target=_pass_on, args=(messages, log, driver), daemon=True)
    passing.start()
    code = process.wait()
    passing.join(LAST_MESSAGES_S)
    assert process.stdin
    process.stdin.close()
    return code


def _forward_commands(driver: Connection, process: subprocess.Popen[bytes]) -> None:
    """Pass the driver's signals and requests on; kill the worker when the driver is gone."""
    for line in driver.lines():
        command = json.loads(line)
        if "signal" in command:
            process.send_signal(command["signal"])
        else:
            write_line(process, line)
    process.send_signal(signal.SIGKILL)


def _pass_on(messages: int, log: int, driver: Connection) -> None:
    """Pass messages and log on until both have ended; the log comes before later messages. A driver
    that gets an error ends its tasks; the traceback in the log must be there by then."""
    os.set_blocking(log, False)
    opened, begun = {messages, log}, b""
    while opened:
        ready, _, _ = select.select(opened, [], [])
        content = os.read(messages, 65536) if messages in ready else b""
        try:
            while log in opened and (text := os.read(log, 65536)):
                driver.send(Log(text.decode(errors="replace")))
            opened.discard(log)
        except BlockingIOError:
            pass  # more may come
        *lines, begun = (begun + content).split(b"\n")
        for line in lines:
            driver.write(line + b"\n")
        if messages in ready and not content:
            opened.discard(messages)
    os.close(messages)
    os.close(log)
