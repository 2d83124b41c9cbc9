"""The driver's side of a barrier stage: it submits the stage and accepts its tasks' connections."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark import InheritableThread

from paceline.cluster import Cluster
from paceline.errors import UserError
from paceline.job import Job
from paceline.places.spark.connection import Connection
from paceline.places.spark.remote_worker import RemoteWorker
from paceline.places.spark.session import explain_failure
from paceline.places.spark.task import Assignment, run_task
from paceline.places.supervise.failures import WorkerFailed
from paceline.run_folder.folder import DRIVER_FILE, RunFolder
from paceline.storage.files import explained
from paceline.storage.locations import is_remote

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
        self._workers: dict[int, RemoteWorker] = {}
        self._error: Exception | None = None
        self._proof = run.path / f"{DRIVER_FILE}{self._name}"

    @property
    def workers(self) -> list[RemoteWorker]:
        """The workers in their order; they run already."""
        return [self._workers[index] for index in sorted(self._workers)]

    def __enter__(self) -> Stage:
        with self._listen() as server:
            host = self._context.getConf().get("spark.driver.host")
            address = (host, server.getsockname()[1])
            self._thread = InheritableThread(target=self._submit, args=(address,), daemon=True)
            try:
                with explained("write", self._proof):
                    self._proof.touch()
                self._thread.start()
                self._accept_tasks(server)
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers.values():
            worker.end()
        if self._thread.ident is not None:
            self._thread.join(END_TIMEOUT_S / 6)
        if self._thread.is_alive():
            self._context.cancelJobGroup(self._name)
            self._thread.join(END_TIMEOUT_S)
        self._proof.unlink(missing_ok=True)

    def _listen(self) -> socket.socket:
        conf = self._context.getConf()
        host, port = conf.get("spark.driver.host"), int(conf.get("spark.paceline.port", "0"))
        own = conf.get("spark.driver.bindAddress", host)
        try:
            return socket.create_server((own, port))
        except OSError as error:
            raise UserError(
                f"the driver cannot listen on {own}:{port} ({error}); see spark.paceline.port"
            ) from None

    def _submit(self, address: tuple[str, int]) -> None:
        count, context = self._job.place.workers, self._context
        proof = "" if self._job.dry_run or is_remote(self._run.where) else str(self._proof)
        assignment = Assignment(self._job.to_json(), address, self._secret, os.getcwd(), proof)
        try:
            context.setJobGroup(
                self._name, f"paceline train {self._run.path.name}", interruptOnCancel=True
            )
            context.parallelize(range(count), count).barrier().mapPartitions(
                partial(run_task, assignment)
            ).collect()
        except Exception as error:
            self._error = error

    def _accept_tasks(self, server: socket.socket) -> None:
        """Accept every task once. Those that Spark starts again later find no listener."""
        timeout_s, count = self._job.place.start_timeout, self._job.place.workers
        deadline = time.monotonic() + timeout_s
        server.settimeout(0.2)
        while len(self._workers) < count:
            try:
                self._accept_task(server.accept()[0])
                continue
            except TimeoutError:
                pass
            if not self._thread.is_alive():
                raise self._failure() from self._error
            if time.monotonic() > deadline:
                started = len(self._workers)
                reason = f"Spark started {started} of {count} tasks in {timeout_s:.0f} s"
                raise WorkerFailed(f"worker {started}", reason, None)

    def _accept_task(self, accepted: socket.socket) -> None:
        """Add the worker of a task that knows the secret of this stage; refuse anybody else."""
        connection = Connection(accepted)
        with suppress(OSError, ValueError, KeyError, TypeError):
            hello = json.loads(connection.read_first(HELLO_TIMEOUT_S))
            index = hello["worker"]
            if hmac.compare_digest(hello["secret"], self._secret) and index not in self._workers:
                job = replace(self._job, cluster=Cluster(index=index))
                log = self._run.log(job.cluster.name)
                self._workers[index] = RemoteWorker(job, log, connection, hello["host"])
                return
        accepted.close()

    def _failure(self) -> Exception:
        """Return what ended the stage before its workers began."""
        if self._error:
            return explain_failure(self._error)
        return WorkerFailed("worker 0", "Spark gave the stage up", None)
