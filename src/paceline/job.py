"""What crosses processes: the experiment, where it runs, and what to do with the run. Frozen and JSON-able, like the experiment."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.errors import UserError
from paceline.experiment import Experiment, from_json


@dataclass(frozen=True)
class Place:
    """Where workers run. It never changes the numbers."""

    on: Literal["local"] = "local"
    """Which system starts the workers."""
    workers: int = 1
    """Processes that share the replicas: a power of two that divides them."""
    devices: Literal["auto", "cpu", "gpu"] = "auto"
    """auto uses the GPUs that TensorFlow sees; cpu keeps off them; gpu insists on one."""


@dataclass(frozen=True)
class Run:
    """One training with one folder."""

    run_dir: str = ""
    """Folder of the run; empty is runs/<recipe>-<hash of the experiment>, so that the same command resumes."""
    stop_at: int = 0
    """Stop after this step as an interruption would; the same command without it goes on."""
    keep: int = 2
    """Newest checkpoints that are kept, beside the best."""
    actions: tuple[str, ...] = ()
    """Actions of your own, as package.module:function or file.py:function; each is called with (step, metrics) after a block."""


@dataclass(frozen=True)
class Job:
    """Everything that a worker process is told."""

    experiment: Experiment
    place: Place = field(default_factory=Place)
    run: Run = field(default_factory=Run)
    worker: int = 0
    dry_run: bool = False

    def __post_init__(self) -> None:
        workers, replicas = self.place.workers, self.experiment.replicas
        if workers < 1 or workers & (workers - 1) or replicas % workers:
            raise UserError(f"workers is {workers}; it must be a power of two that divides the {replicas} replicas")
        if self.run.keep < 1 or self.run.stop_at < 0:
            raise UserError(
                f"keep is {self.run.keep} and stop-at {self.run.stop_at}; keep must be 1 or more, stop-at 0 or more"
            )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Job:
        return from_json(Job, values)
