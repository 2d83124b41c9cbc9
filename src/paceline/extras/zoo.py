"""The zoo: trained models with the command that made them and digests to compare a repetition with.

An entry is a small run folder: config.json, result.json, one checkpoint with weights only, and
zoo.json, its row in the table. Entries are in the package, in `zoo/` of a clone of the repository,
and in the folder that the environment variable PACELINE_ZOO names. `zoo:NAME` stands for an entry
wherever a run is expected.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError, did_you_mean
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import from_json
from paceline.storage.files import read_json

PREFIX = "zoo:"
ADVICE = "install Paceline again, or make the entry again"
FOLDER = "PACELINE_ZOO"
"""Environment variable that names a further folder of entries."""


@dataclass(frozen=True)
class Row:
    """What the table says about an entry."""

    name: str
    command: str
    step: int
    test_accuracy: float | None
    state_sha256: str
    """Digest of the state at the end of the training."""
    first_steps: int
    first_sha256: str
    """Digest of the state after `first_steps` steps."""
    kernels: str
    arithmetic: int = 0
    """Version of the arithmetic that computed both; 0 is older than docs/arithmetic.md."""

    @property
    def experiment(self) -> Experiment:
        """Return the experiment of the entry, without the folder of its data.

        A user's own code is refused: an entry must be safe to use and to train.
        """
        config = read_json(zoo_folder(self.name) / "config.json", ADVICE)
        experiment = Experiment.from_json(config["experiment"])
        if experiment.model.build or experiment.data.build:
            raise UserError(f"{self.name} has model.build or data.build; an entry cannot")
        return experiment


def _entries() -> dict[str, Path]:
    """Return the folders of all entries by name; the user's own win."""
    own, package = os.environ.get(FOLDER), Path(__file__).parents[1]
    clone = [package.parents[1] / "zoo"] if package.parent.name == "src" else []
    folders = [package / "zoo", *clone, *([Path(own)] if own else [])]
    files = [file for folder in folders for file in folder.glob("*/zoo.json")]
    return {file.parent.name: file.parent for file in files}


def list_zoo() -> list[Row]:
    """Return the rows of all entries by name."""
    return [find_row(name) for name in sorted(_entries())]


def find_row(name: str) -> Row:
    """Return the row of an entry, with or without `zoo:`."""
    return from_json(Row, read_json(zoo_folder(name) / "zoo.json", ADVICE))


def zoo_folder(name: str) -> Path:
    """Return the folder of an entry, with or without `zoo:`."""
    name, entries = name.removeprefix(PREFIX), _entries()
    if name not in entries:
        raise UserError(f"the zoo has no {name!r}; {did_you_mean(name, sorted(entries))}")
    return entries[name]
