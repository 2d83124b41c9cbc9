"""Trainings in which workers fail: how a fault is ordered, and what a run shows of it afterwards.

`faults/sitecustomize.py` makes the faults. Not a test itself.
"""

import os
import re
from pathlib import Path
from typing import Any

from helpers import (
    SUPPORT,
    Ended,
    free_addresses,
    losses_of,
    metrics_of,
    program,
    result_of,
    tf_config,
)

FAULTS = SUPPORT / "faults"
STALL_S = 20.0


def with_faults(**more: str) -> dict[str, str]:
    """An environment in which Python imports tests/support/faults/sitecustomize.py."""
    path = [str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return more | {"PYTHONPATH": os.pathsep.join(path)}


def fault(folder: Path, worker: int, phase: str, kind: str, **more: str) -> dict[str, str]:
    """The environment in which one worker fails once."""
    return faults(folder, [(worker, phase, kind)], **more)


def faults(folder: Path, cases: list[tuple[int, str, str]], **more: str) -> dict[str, str]:
    ordered = ",".join(f"{worker} {phase} {kind}" for worker, phase, kind in cases)
    return with_faults(FAULT=ordered, FAULT_FOLDER=str(folder), **more)


def saved_step(run: Path) -> int:
    paths = run.glob("checkpoints/step-*.safetensors")
    return max((int(path.stem.removeprefix("step-")) for path in paths), default=0)


def resumed_at(ended: Ended) -> int:
    return int(found[1]) if (found := re.search(r"resuming at step (\d+)", ended.out)) else 0


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [
        {name: record[name] for name in record if name.startswith("test_")}
        for record in metrics_of(run)
        if "test_loss" in record
    ]


def assert_same_run(run: Path, other: Path) -> None:
    """Same bits, and neither a gap nor a repeat in what was measured."""
    assert result_of(run)["state_sha256"] == result_of(other)["state_sha256"]
    assert losses_of(run) == losses_of(other)
    assert [step for step, _ in losses_of(run)] == list(range(1, result_of(run)["step"] + 1))
    assert evaluations(run) == evaluations(other)
    steps = [record["step"] for record in metrics_of(run)]
    assert steps == sorted(set(steps))


class Pair:
    """A chief and a worker of one TF_CONFIG, each started by its own command."""

    def __init__(self, folder: Path) -> None:
        self.addresses = free_addresses(2)
        self._cluster = {"chief": self.addresses[:1], "worker": self.addresses[1:]}
        self._folder = folder

    def task(self, role: str, *flags: str, environment: dict[str, str] | None = None) -> Any:
        (self._folder / role).mkdir()
        own = tf_config(self._cluster, role) | (environment or {})
        flags = ("train", "smoke", "--stall-timeout", str(STALL_S), *flags)
        return program(*flags, cwd=self._folder / role, environment=own)
