"""Whether a checkpoint belongs to a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError
from paceline.experiment.experiment import MOVABLE
from paceline.storage.files import is_file

if TYPE_CHECKING:
    from paceline.run_folder.folder import RunFolder


@dataclass(frozen=True)
class RunIdentity:
    """What the metadata of a run's checkpoints must agree with. An empty one agrees with all."""

    experiment: str = ""
    """Digest of the experiment, without what may move."""
    last_step: int = -1
    last_state: str = ""
    """Step and digest of the last state of a finished run, from result.json."""

    def check(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Raise UserError if a checkpoint was not saved by this run."""
        differs = self.experiment not in ("", metadata.get("experiment"))
        is_last = int(metadata["step"]) == self.last_step
        if differs or (is_last and metadata["state_sha256"] != self.last_state):
            raise UserError(f"{path} belongs to a different run; remove it, or restore the run's")


ANY_RUN = RunIdentity()


def identity_of(run: RunFolder) -> RunIdentity:
    """Return what the checkpoints of a run must agree with."""
    if is_file(run.path / "zoo.json"):  # an entry of the zoo: weights of a run that is not here
        return ANY_RUN
    experiment, result = run.experiment().digest(MOVABLE), dict[str, Any]()
    with suppress(UserError):  # a damaged one is computed again from the last checkpoint
        result = run.read_result() or result
    last = (result["step"], result["state_sha256"]) if result.get("finished") else (-1, "")
    return RunIdentity(experiment, *last)
