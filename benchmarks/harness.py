"""Runs contenders, which are child processes, in alternating turns.

So the noise of the machine affects all of them alike. The harness knows the line protocol (see
`protocol`), not what the contenders compute. `summary` computes figures from the turns.
"""

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import processes

ROOT = Path(__file__).parents[1]
_STDERR_LINES = 15
_GRACE_S = 10.0
_MOST_WARM_UPS = 30
# A contender has its library's defaults; exported variables must not change the comparison.
_NOT_INHERITED = (
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "TF_CONFIG",
    "TF_XLA_FLAGS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "KERAS_BACKEND",
    "PACELINE_NO_KERNELS",
)


class ContenderFailed(Exception):
    """A contender died, did not answer or broke the protocol; the message has its stderr."""


@dataclass(frozen=True)
class Contender:
    """A command that uses the line protocol; `environment` is added to the inherited one."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """What a contender did in one turn."""

    images: float
    wall_s: float
    cpu_s: float

    @property
    def images_per_s(self) -> float:
        return self.images / self.wall_s

    @property
    def cpu_ms_per_image(self) -> float:
        return 1000 * self.cpu_s / self.images


@dataclass(frozen=True)
class Measured:
    """The turns of a contender, one per round, the share of a core it used between them, and the
    sum of the peak resident sizes of its processes."""

    name: str
    steps_per_turn: int
    turns: tuple[Turn, ...]
    idle_cpu_share: float
    peak_bytes: int = 0


def clean_environment(additions: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED} | dict(
        additions
    )


class Running:
    """A started contender. Leaving the `with` block ends it and all of its descendants."""

    def __init__(self, contender: Contender, timeout_s: float) -> None:
        self.name, self._timeout_s = contender.name, timeout_s
        self._mark = processes.new_mark()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as this object
        self._process = subprocess.Popen(
            contender.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=clean_environment({**contender.environment, **self._mark}),
            cwd=ROOT,
            start_new_session=True,
        )
        self._end = os.pidfd_open(self._process.pid)
        self._idle_since: tuple[float, float] | None = None
        self._idle_wall_s = self._idle_cpu_s = 0.0

    def __enter__(self) -> Self:
        return self

    def turn(self, steps: int) -> Turn:
        """Run one turn of `steps` steps."""
        self._end_idling()
        try:
            self._process.stdin.write(f"go {steps}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("died between two turns") from None
        # The end of the pipe does not tell of a death: children of the contender may hold it open.
        waits_for: list[Any] = [self._process.stdout, self._end]
        ready, _, _ = select.select(waits_for, [], [], self._timeout_s)
        if not ready:
            raise self._failure(f"gave no answer within {self._timeout_s:.0f} s")
        line = self._process.stdout.readline() if self._process.stdout in ready else b""
        if not line:
            raise self._failure("died in its turn")
        try:
            turn = Turn(**json.loads(line))
        except (ValueError, TypeError):
            raise self._failure(f"answered {line!r}, which is not a turn") from None
        self._idle_since = time.perf_counter(), processes.cpu_s(self._mark)
        return turn

    def idle_cpu_share(self) -> float:
        """Return the CPU time used between turns, as a share of one core."""
        self._end_idling()
        return self._idle_cpu_s / self._idle_wall_s if self._idle_wall_s else 0.0

    def peak_bytes(self) -> int:
        """Return the sum of the peak resident sizes of its processes."""
        return processes.peak_bytes(self._mark)

    def _end_idling(self) -> None:
        if self._idle_since:
            wall_start, cpu_start = self._idle_since
            self._idle_wall_s += time.perf_counter() - wall_start
            self._idle_cpu_s += processes.cpu_s(self._mark) - cpu_start
        self._idle_since = None

    def _failure(self, what: str) -> ContenderFailed:
        try:
            code: object = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = "none, it still runs"
        self._stderr.seek(0)
        tail = self._stderr.read().decode(errors="replace").splitlines()[-_STDERR_LINES:]
        return ContenderFailed(
            "\n".join(
                [f"contender {self.name} {what} (exit code: {code}); the end of its stderr:", *tail]
            )
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S if error is None else 0.1)
        processes.kill(self._mark)
        self._process.wait()
        os.close(self._end)
        self._process.stdout.close()
        self._stderr.close()


def warm_up(running: Running, turn_seconds: float) -> int:
    """Run until everything is compiled, and return how many steps fill a turn.

    Two turns must agree: what a contender does once makes a turn long.
    """
    running.turn(1)
    steps, before = 1, 0
    for _ in range(_MOST_WARM_UPS):
        wall_s = running.turn(steps).wall_s
        fitting = max(1, round(steps * turn_seconds / wall_s))
        if fitting <= 2 * steps and 0.8 * fitting <= before <= 1.25 * fitting:
            return fitting
        steps, before = min(fitting, 2 * steps), fitting
    raise ContenderFailed(
        f"contender {running.name} has no steady speed: after {_MOST_WARM_UPS} turns, "
        f"{before} steps would fill one of {turn_seconds:g} s, and before that another number"
    )


Turns = Mapping[str, Sequence[Turn]]
"""The turns of each contender so far."""


def take_turns(
    running: Sequence[Running], steps: Mapping[str, int], earlier: Turns
) -> dict[str, Turn]:
    return {each.name: each.turn(steps[each.name]) for each in running}


def alternate(
    contenders: Sequence[Contender],
    rounds: int,
    turn_seconds: float,
    timeout_s: float = 900.0,
    tell: Callable[[str], None] = lambda message: None,
    round_of: Callable[[Sequence[Running], Mapping[str, int], Turns], dict[str, Turn]] = take_turns,
) -> dict[str, Measured]:
    """Start and warm up all, then give each a turn per round, beginning with another each time."""
    with ExitStack() as stack:
        running, steps = list[Running](), dict[str, int]()
        turns: dict[str, list[Turn]] = {contender.name: [] for contender in contenders}
        for contender in contenders:
            tell(f"warming up {contender.name}")
            running.append(stack.enter_context(Running(contender, timeout_s)))
            steps[contender.name] = warm_up(running[-1], turn_seconds)
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            first = number % len(running)
            taken = round_of(running[first:] + running[:first], steps, turns)
            for name, turn in taken.items():
                turns[name].append(turn)
        return {
            each.name: Measured(
                each.name,
                steps[each.name],
                tuple(turns[each.name]),
                each.idle_cpu_share(),
                each.peak_bytes(),
            )
            for each in running
        }
