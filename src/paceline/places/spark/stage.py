"""The driver's side of a barrier stage: it submits the stage and accepts its tasks' connections.

`process_group.Group` then sees each worker as if it were a process of this machine
(`remote_worker`).
"""

from __future__ import annotations

import hmac
import json
import os
import queue
import secrets
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import InheritableThread

from paceline.errors import UserError
from paceline.job import Job
from paceline.places.spark.connection import keep_alive, read_first_line, shut_down
from paceline.places.spark.remote_worker import RemoteWorker
from paceline.places.spark.session import explain_failure
from paceline.places.spark.task import Assignment, run_task
from paceline.places.supervise.failures import WorkerFailed
from paceline.runs.folder import DRIVER_FILE, RunFolder
from paceline.storage.backends import is_remote
from paceline.storage.files import explained

if TYPE_CHECKING:
    from pyspark import SparkContext

HELLO_TIMEOUT_S = 10.0
END_TIMEOUT_S = 30.0


class Stage:
    """One attempt. In the `with` block every task has a worker; leaving it ends all of them."""

    def __init__(self, context: SparkContext, job: Job, run: RunFolder) -> None:
        self._context = context
        self._job = job
        self._run = run
        self._secret = secrets.token_hex()
        self._name = f"paceline-{secrets.token_hex(4)}"
        self._arrived: queue.Queue[tuple[int, RemoteWorker]] = queue.Queue()
        self._workers: dict[int, RemoteWorker] = {}
        self._num_started = 0
        self._over = False
        self._error: Exception | None = None
        self._proof = run.path / f"{DRIVER_FILE}{self._name}"
        self._thread = InheritableThread(target=self._submit, daemon=True)

    def __enter__(self) -> Stage:
        conf = self._context.getConf()
        host, port = conf.get("spark.driver.host"), int(conf.get("spark.paceline.port", "0"))
        own = conf.get("spark.driver.bindAddress", host)
        try:
            self._server = socket.create_server((own, port))
        except OSError as error:
            raise UserError(
                f"the driver cannot listen on {own}:{port} ({error}); see spark.paceline.port"
            ) from None
        self._address = (host, self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            with explained("write", self._proof):
                self._proof.touch()
            self._thread.start()
            self._wait_for_tasks()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._over = True
        shut_down(self._server)
        self._server.close()
        late = [self._arrived.get()[1] for _ in range(self._arrived.qsize())]
        for worker in (*self._workers.values(), *late):
            worker.kill()
        self._thread.join(END_TIMEOUT_S / 6)
        if self._thread.is_alive():
            self._context.cancelJobGroup(self._name)
            self._thread.join(END_TIMEOUT_S)
        self._proof.unlink(missing_ok=True)

    def start(self, job: Job, log: Path | None) -> tuple[RemoteWorker, int]:
        """Return the next worker for a `Group`; it runs already."""
        worker = self._workers[self._num_started]
        self._num_started += 1
        return worker, worker.reader

    def _submit(self) -> None:
        count, context = self._job.place.workers, self._context
        proof = "" if self._job.dry_run or is_remote(self._run.where) else str(self._proof)
        assignment = Assignment(
            self._job.to_json(), self._address, self._secret, os.getcwd(), proof
        )
        try:
            context.setJobGroup(
                self._name, f"paceline train {self._run.path.name}", interruptOnCancel=True
            )
            context.parallelize(range(count), count).barrier().mapPartitions(
                partial(run_task, assignment)
            ).collect()
        except Exception as error:
            self._error = error

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed: the attempt is over
                return
            threading.Thread(target=self._accept_task, args=(connection,), daemon=True).start()

    def _accept_task(self, connection: socket.socket) -> None:
        """Accept a task that knows the secret of this stage.

        A task that Spark itself started again is refused: `restarts` starts a new stage.
        """
        connection.settimeout(HELLO_TIMEOUT_S)
        try:
            hello = json.loads(read_first_line(connection))
            if (
                not hmac.compare_digest(hello["secret"], self._secret)
                or hello["worker"] in self._workers
            ):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        keep_alive(connection)
        worker = RemoteWorker(connection, hello["host"], self._run.log(f"worker {hello['worker']}"))
        self._arrived.put((hello["worker"], worker))
        if self._over:
            worker.kill()

    def _wait_for_tasks(self) -> None:
        timeout_s, count = self._job.place.start_timeout, self._job.place.workers
        deadline = time.monotonic() + timeout_s
        while len(self._workers) < count:
            try:
                index, worker = self._arrived.get(timeout=0.2)
                self._workers[index] = worker
            except queue.Empty:
                if not self._thread.is_alive():
                    raise self._explained() from self._error
                if time.monotonic() > deadline:
                    started = len(self._workers)
                    reason = f"Spark started {started} of {count} tasks in {timeout_s:.0f} s"
                    raise WorkerFailed(f"worker {started}", reason, None) from None

    def _explained(self) -> Exception:
        """Return what ended the stage before its workers began."""
        if self._error:
            return explain_failure(self._error)
        return WorkerFailed("worker 0", "Spark gave the stage up", None)
