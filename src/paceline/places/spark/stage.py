"""The driver's side of a barrier stage: it submits the stage and accepts its tasks' connections.

Behind each connection is a worker.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import InheritableThread

from paceline.errors import UserError, WorkerFailed
from paceline.job import Cluster, Job
from paceline.messages import Crash, Message, from_line
from paceline.places.spark.session import explain_failure
from paceline.places.spark.task import Connection, Exit, Log, run_task
from paceline.run_folder.folder import DRIVER_FILE, RunFolder
from paceline.storage.files import explained, run_file
from paceline.storage.locations import is_remote
from paceline.supervise.process import EXIT_S

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

HELLO_TIMEOUT_S = 10.0
END_TIMEOUT_S = 30.0
GONE = 1
"""Exit code of a worker whose executor is gone."""


@contextmanager
def open_stage(context: SparkContext, job: Job) -> Iterator[list[RemoteWorker]]:
    """Run one attempt: in the `with` block every task has a worker; leaving it ends all of them."""
    name, secret = f"paceline-{secrets.token_hex(4)}", secrets.token_hex()
    run, workers, errors = RunFolder(job.run.run_dir), dict[int, RemoteWorker](), list[Exception]()
    proof, conf = run.path / f"{DRIVER_FILE}{name}", context.getConf()
    shown = "" if job.dry_run or is_remote(run.where) else str(proof)
    with explained("write", proof):
        proof.touch()
    with _listen(conf) as server:
        address = (conf.get("spark.driver.host"), server.getsockname()[1])
        task = partial(run_task, job.to_json(), address, secret, os.getcwd(), shown)

        def submit() -> None:
            count = job.place.workers
            try:
                context.setJobGroup(name, f"paceline train {run.path.name}", interruptOnCancel=True)
                context.parallelize(range(count), count).barrier().mapPartitions(task).collect()
            except Exception as error:
                errors.append(error)

        thread = InheritableThread(target=submit, daemon=True)
        thread.start()
        try:
            for index, connection, host in _accept_tasks(server, job, secret, thread, errors):
                own = replace(job, cluster=Cluster(index=index))
                log = run.log(own.cluster.name)
                workers[index] = RemoteWorker(own, log, connection, host)
            server.close()  # tasks that Spark starts again later find no listener
            yield [workers[index] for index in sorted(workers)]
        finally:
            for worker in workers.values():
                worker.end()
            thread.join(END_TIMEOUT_S / 6)
            if thread.is_alive():
                context.cancelJobGroup(name)
                thread.join(END_TIMEOUT_S)
            proof.unlink(missing_ok=True)


def _listen(conf: SparkConf) -> socket.socket:
    host, port = conf.get("spark.driver.host"), int(conf.get("spark.paceline.port", "0"))
    own = conf.get("spark.driver.bindAddress", host)
    try:
        return socket.create_server((own, port))
    except OSError as error:
        raise UserError(
            f"the driver cannot listen on {own}:{port} ({error}); see spark.paceline.port"
        ) from None


def _accept_tasks(
    server: socket.socket,
    job: Job,
    secret: str,
    thread: InheritableThread,
    errors: Sequence[Exception],
) -> Iterator[tuple[int, Connection, str]]:
    """Yield number, connection and host of every task that knows the secret of this stage. Anybody
    else is refused. Raises what ends the stage before its workers began."""
    timeout_s, count, known = job.place.start_timeout, job.place.workers, set[int]()
    deadline = time.monotonic() + timeout_s
    server.settimeout(0.2)
    while len(known) < count:
        try:
            accepted = server.accept()[0]
        except TimeoutError:
            if errors:
                failure = explain_failure(errors[0])
                if job.place.min_workers:  # fewer workers may be able to start
                    failure = WorkerFailed("worker 0", str(failure), None)
                raise failure from errors[0]
            if time.monotonic() > deadline or not thread.is_alive():
                ended = f"in {timeout_s:.0f} s" if thread.is_alive() else "and gave the stage up"
                reason = f"Spark started {len(known)} of {count} tasks {ended}"
                raise WorkerFailed(f"worker {len(known)}", reason, None) from None
            continue
        connection = Connection(accepted)
        with suppress(OSError, ValueError, KeyError, TypeError):
            hello = json.loads(connection.read_first(HELLO_TIMEOUT_S))
            index, host = int(hello["worker"]), str(hello["host"])
            if hmac.compare_digest(hello["secret"], secret) and index not in known:
                known.add(index)
                yield index, connection, host
                continue
        accepted.close()


class RemoteWorker:
    """A worker that its task has started, as a group sees it. It ends when the connection does."""

    def __init__(self, job: Job, log: Path, connection: Connection, host: str) -> None:
        self.job = job
        self.log = log
        self._connection = connection
        self._host = host
        self._code: int | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Do nothing: it runs already."""

    def messages(self) -> Iterator[Message]:
        """Yield its messages, and write its log."""
        with open(self.log, "a", encoding="utf-8", opener=run_file) as log:
            for line in self._connection.lines():
                try:
                    message = from_line(line)
                except ValueError:  # the last line of a host that vanished
                    break
                if isinstance(message, Exit):
                    self._code = message.code
                    break
                if isinstance(message, Log):
                    log.write(message.text)
                    log.flush()
                else:
                    yield message
        if self._code is None:
            self._code = GONE
            yield Crash(f"its executor on host {self._host} is gone")
        self._ended.set()

    def poll(self) -> int | None:
        return self._code

    def wait(self) -> int:
        if not self._ended.wait(EXIT_S):
            self.end()
            self._ended.wait(EXIT_S)
        return GONE if self._code is None else self._code

    def send_signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self.end()
        else:
            self._connection.write(json.dumps({"signal": number}).encode() + b"\n")

    def ask(self, request: str, **facts: int) -> None:
        self._connection.write(json.dumps({"request": request} | facts).encode() + b"\n")

    def end(self) -> None:
        self._connection.shut_down()  # without it a task ends its worker
