"""The processes of one run: their addresses and their roles, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Cluster:
    """The processes of a run, chief first, and which of them this one is.

    Without addresses there is one process, as for an evaluator. With parameter servers (`ps`), the
    chief coordinates and computes nothing; workers and parameter servers do what it sends them.
    """

    addresses: tuple[str, ...] = ()
    index: int = 0
    role: Literal["worker", "evaluator", "ps"] = "worker"
    ps: tuple[str, ...] = ()

    @property
    def num_workers(self) -> int:
        """Number of processes that compute."""
        return max(1, len(self.addresses) - bool(self.ps))

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run folder."""
        return self.role == "worker" and self.index == 0

    @property
    def serves(self) -> bool:
        """Whether this process does what a chief of parameter servers sends it."""
        return bool(self.ps) and not self.is_chief

    @property
    def everyone(self) -> tuple[str, ...]:
        """Addresses of all processes."""
        return self.addresses + self.ps

    @property
    def address(self) -> str:
        """Address of this process."""
        return (self.ps if self.role == "ps" else self.addresses)[self.index]

    @property
    def name(self) -> str:
        """Name of this process in messages and logs; without parameter servers the chief is
        worker 0."""
        if self.role == "ps" or not self.ps:
            return f"{self.role} {self.index}"
        return f"worker {self.index - 1}" if self.index else "chief"

    @property
    def tasks(self) -> dict[str, list[str]]:
        """The cluster as TensorFlow's ParameterServerStrategy takes it."""
        chief, workers = list(self.addresses[:1]), list(self.addresses[1:])
        return {"chief": chief, "worker": workers, "ps": list(self.ps)}
