"""Contenders of several processes on this machine that have connections, as `--workers N`."""

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.protocol import serve_processes
from paceline.messages import NEIGHBORS
from paceline.places.local import connect_neighbors


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def serve_neighbors(
    commands: Sequence[Sequence[str]], images: Callable[[list[float]], float]
) -> None:
    """Do what `serve_processes` does; each process has its connections to the others."""
    connections = iter(connect_neighbors(len(commands)))

    def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        passed = next(connections)
        environment = {**os.environ, NEIGHBORS: ",".join(map(str, passed))}
        process = subprocess.Popen(command, pass_fds=passed, env=environment, **options)
        for handle in passed:
            os.close(handle)
        return process

    serve_processes(commands, images, start)
