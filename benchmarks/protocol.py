"""The contender's end of the line protocol: read `go N`, do N steps, answer with JSON.

It imports no library, so that every contender can import it in whichever Python it runs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@dataclass
class Clock:
    """Wall and CPU time since it was made."""

    wall_start: float
    cpu_start: float

    @staticmethod
    def start() -> Clock:
        return Clock(time.perf_counter(), cpu_seconds())

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall_start, cpu_seconds() - self.cpu_start


class Channel:
    """The two pipes to the harness. What libraries print goes to standard error instead."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def next_turn(self) -> int | None:
        """Wait for the next turn; return its number of steps, or None at the end."""
        line = sys.stdin.readline()
        if not line:
            return None
        word, steps = line.split()
        assert word == "go", f"the harness says {line!r}; a turn is 'go N'"
        return int(steps)

    def report(self, images: float, wall_s: float, cpu_s: float) -> None:
        self._answers.write(json.dumps({"images": images, "wall_s": wall_s, "cpu_s": cpu_s}) + "\n")


def serve(train: Callable[[int], float]) -> None:
    """Answer turns until the harness ends; `train(steps)` returns the number of images."""
    channel = Channel()
    while (steps := channel.next_turn()) is not None:
        clock = Clock.start()
        images = train(steps)
        channel.report(images, *clock.read())


def serve_group(train: Callable[[int], float]) -> None:
    """Do the same for a contender whose work is done by other processes.

    The CPU time is that of all processes that the harness started.
    """
    from benchmarks import processes

    channel, mark = Channel(), processes.own_mark()
    while (steps := channel.next_turn()) is not None:
        wall_start, cpu_start = time.perf_counter(), processes.cpu_s(mark)
        images = train(steps)
        channel.report(images, time.perf_counter() - wall_start, processes.cpu_s(mark) - cpu_start)


def serve_processes(
    commands: Sequence[Sequence[str]],
    count: Callable[[list[float]], float],
    start: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
) -> None:
    """Pass every turn to several contenders; it ends when all of them have ended.

    `count` makes the number of images from those of each.
    """
    channel, pipe = Channel(), subprocess.PIPE
    workers = [
        start(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) for command in commands
    ]
    while (steps := channel.next_turn()) is not None:
        clock = Clock.start()
        for worker in workers:
            worker.stdin.write(f"go {steps}\n")
        answers = [json.loads(worker.stdout.readline() or "null") for worker in workers]
        if None in answers:
            sys.exit(f"worker {answers.index(None)} ended; what it said stands above")
        wall_s, cpu_s = clock.read()
        cpu_s += sum(answer["cpu_s"] for answer in answers)
        channel.report(count([answer["images"] for answer in answers]), wall_s, cpu_s)
    for worker in workers:
        worker.stdin.close()
