"""Contenders of several processes on this machine that share memory, as `--workers N` has them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

from benchmarks.protocol import serve_processes
from paceline.places.supervise.neighbors import Neighbors


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
    numbers = count()
    with Neighbors(len(commands)) as neighbors:

        def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
            index = next(numbers)
            passed, variable = neighbors.of(index)
            environment = {**os.environ, **variable}
            process = subprocess.Popen(command, pass_fds=passed, env=environment, **options)
            neighbors.close(index)
            return process

        serve_processes(commands, images, start)
