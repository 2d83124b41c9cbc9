"""moto's S3 server in a process of its own, and fixtures for folders on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest

from helpers import free_port, wait_until
from paceline.run_folder.remote_run import RemoteRun
from paceline.storage.lease import read_lease
from paceline.storage.remote import Store


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


def answers(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
        return True
    except OSError:
        return False


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Start an S3 server with an empty `bucket`; set the environment that leads to it."""
    with server() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "ENDPOINT_URL": url,
            "ACCESS_KEY_ID": "us",
            "SECRET_ACCESS_KEY": "er",
            "DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(f"AWS_{name}", value)
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
    lease = read_lease(Store(url))
    assert lease is not None
    return dict(lease.files)
