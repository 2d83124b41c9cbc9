"""The driver's side of a barrier stage: it submits the stage, takes the reports of its tasks, and shows each worker to
`processes.Group` as if it were a process of this machine."""

from __future__ import annotations

import hmac
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pyspark import InheritableThread

from paceline.config.job import Job
from paceline.errors import UserError
from paceline.messages import Crash, Exit, Log, from_line, to_line
from paceline.places.failures import WorkerFailed
from paceline.places.spark.session import explain_failure
from paceline.places.spark.task import Errand, hang_up, keep_alive, run_task
from paceline.run_folder.files import explained
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.storage import is_remote

if TYPE_CHECKING:
    from pyspark import SparkContext

HELLO_TIMEOUT_S = 10.0
END_TIMEOUT_S = 30.0
GONE = 1


class RemoteWorker:
    """A worker behind the connection of its task, with the face of a `subprocess.Popen`."""

    def __init__(self, connection: socket.socket, host: str, log: Path) -> None:
        self._connection, self._host, self._log = connection, host, log
        self.stdin: IO[bytes] | None = connection.makefile("wb")
        self.reader, self._writer = os.pipe()
        self._code: int | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def returncode(self) -> int | None:
        return None if self._thread.is_alive() else self._code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            hang_up(self._connection)  # without it a task ends its worker
            return
        commands = self.stdin
        assert commands
        with suppress(OSError, ValueError):  # gone already
            commands.write(json.dumps({"signal": number}).encode() + b"\n")
            commands.flush()

    def _read(self) -> None:
        with (
            os.fdopen(self._writer, "wb", buffering=0) as messages,
            open(self._log, "a", encoding="utf-8") as log,
        ):
            try:
                for line in self._connection.makefile("rb"):
                    message = from_line(line)
                    if isinstance(message, Log):
                        log.write(message.text)
                        log.flush()
                    elif isinstance(message, Exit):
                        self._code = message.code
                        break
                    else:
                        messages.write(line)
            except (OSError, ValueError):
                pass  # a host that vanished, or the middle of a line
            if self._code is None:
                self._code, text = GONE, f"its executor on host {self._host} is gone"
                try:
                    messages.write(to_line(Crash(text)).encode())
                except OSError:
                    return  # nobody listens any more


class Stage:
    """One attempt. Inside the `with` block every task has a worker; leaving it ends them all, and the stage."""

    def __init__(self, context: SparkContext, job: Job, run: RunFolder) -> None:
        self._context, self._job, self._run = context, job, run
        self._secret, self._name = secrets.token_hex(), f"paceline-{secrets.token_hex(4)}"
        self._arrived: queue.Queue[tuple[int, RemoteWorker]] = queue.Queue()
        self._workers: dict[int, RemoteWorker] = {}
        self._handed_out, self._over = 0, False
        self._error: Exception | None = None
        self._proof = run.path / f".{self._name}"
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
        hang_up(self._server)
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
        """The next worker for a `Group`; it runs already."""
        worker = self._workers[self._handed_out]
        self._handed_out += 1
        return worker, worker.reader

    def _submit(self) -> None:
        count, context = self._job.place.workers, self._context
        proof = "" if self._job.dry_run or is_remote(self._run.where) else str(self._proof)
        errand = Errand(self._job.to_json(), self._address, self._secret, os.getcwd(), proof)
        try:
            context.setJobGroup(
                self._name, f"paceline train {self._run.path.name}", interruptOnCancel=True
            )
            context.parallelize(range(count), count).barrier().mapPartitions(
                partial(run_task, errand)
            ).collect()
        except Exception as error:
            self._error = error

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed: the attempt is over
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Only who knows the secret is a task of this stage. A task of a retry of Spark's own fails: we start a new stage ourselves."""
        connection.settimeout(HELLO_TIMEOUT_S)
        try:
            hello = json.loads(_first_line(connection))
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
        deadline, count = time.monotonic() + self._job.place.start_timeout, self._job.place.workers
        while len(self._workers) < count:
            try:
                index, worker = self._arrived.get(timeout=0.2)
                self._workers[index] = worker
            except queue.Empty:
                if not self._thread.is_alive():
                    raise self._explained() from self._error
                if time.monotonic() > deadline:
                    reason = f"Spark started {len(self._workers)} of {count} tasks in {self._job.place.start_timeout:.0f} s"
                    raise WorkerFailed(f"worker {len(self._workers)}", reason, None) from None

    def _explained(self) -> Exception:
        """What ended the stage before its workers began, in one line."""
        return (
            explain_failure(self._error)
            if self._error
            else WorkerFailed("worker 0", "Spark gave the stage up", None)
        )


def _first_line(connection: socket.socket) -> bytes:
    """Byte by byte, so that nothing of what follows is taken."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 4096:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line
