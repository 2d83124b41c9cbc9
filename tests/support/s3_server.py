"""moto's S3 server in its own process, a proxy in front of it, and fixtures for folders on it."""

import os
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import boto3
import pytest

from helpers import free_port, wait_until
from paceline.run_folder.remote_run import RemoteRun
from paceline.storage.lease import read_lease
from paceline.storage.remote import Store

KEYS = {"AWS_ACCESS_KEY_ID": "us", "AWS_SECRET_ACCESS_KEY": "er", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def server(host: str = "127.0.0.1", **environment: str) -> Iterator[str]:
    """moto's S3 server in a process of its own. Yields its URL."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | environment,
    )
    try:
        wait_until(lambda: answers(port, host), 60, "moto's server does not answer")
        yield f"http://{host}:{port}"
    finally:
        process.kill()
        process.wait()


def answers(port: int, host: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


FAILURE = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: 39\r\n\r\n<Error><Code>SlowDown</Code></Error>   "
)


class Proxy(socketserver.ThreadingTCPServer):
    """Between a run and S3, at all addresses of this host: good, slow, refusing, or failing."""

    daemon_threads, request_queue_size = True, 64

    def __init__(self, target: int) -> None:
        super().__init__(("", 0), socketserver.BaseRequestHandler)
        self.mode, self._target = "good", target
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def finish_request(self, client: socket.socket, _: object) -> None:
        with suppress(OSError):
            if self.mode == "refusing":
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                copying = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                copying.start()
                self._copy(client, server, answer_to=client)
                copying.join()

    def _copy(
        self, source: socket.socket, target: socket.socket, answer_to: socket.socket | None = None
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.mode == "refusing":
                    break
                if self.mode == "failing" and answer_to:
                    answer_to.sendall(FAILURE)
                    break
                if self.mode == "slow":
                    time.sleep(0.3)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Start an S3 server with an empty `bucket`; set the environment that leads to it."""
    with server() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in (KEYS | {"AWS_ENDPOINT_URL": url}).items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield url


@pytest.fixture
def folder(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty remote folder for one test, with an empty cache."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return f"s3://bucket/{tmp_path.name}-{os.getpid()}"


def put_run(local: Path, url: str) -> None:
    """Upload a local run folder as a chief would."""
    with tempfile.TemporaryDirectory() as scratch:
        run = RemoteRun(Store(url), Path(scratch))
        run.lock("", lambda message: None)
        shutil.copytree(local, scratch, dirs_exist_ok=True)
        run.publish()
        run.unlock()


def leased_files(url: str) -> dict[str, str]:
    """Return the files of a run that its lease names: name -> key."""
    return dict(read_lease(Store(url))[0].files)
