"""The zoo: trained models with the command that made them and digests to compare a repetition with.

An entry is a small run folder: config.json, result.json, one checkpoint with weights only, and
zoo.json, its row in the table. Entries are in the package, in the cache, where `fetch_entry` copies
them to, and in the folder that the environment variable PACELINE_ZOO names. `zoo:NAME` stands for
an entry wherever a run is expected.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paceline.errors import UserError, did_you_mean
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import from_json
from paceline.storage.files import explained, read_json, replacing_path, sealed, write_json
from paceline.storage.locations import cache_folder, is_remote
from paceline.storage.remote import open_to_read

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
    cpu: str = "an unknown CPU"
    """Name of the CPU that computed both."""

    @property
    def experiment(self) -> Experiment:
        """Return the experiment of the entry, without the folder of its data."""
        config = read_json(zoo_folder(self.name) / "config.json", ADVICE)
        return _without_code(Experiment.from_json(config["experiment"]), self.name)


def _without_code(experiment: Experiment, name: str) -> Experiment:
    """Refuse a user's own code: an entry must be safe to use and to train."""
    if experiment.model.build or experiment.data.build:
        raise UserError(f"{name} has model.build or data.build; an entry of the zoo cannot")
    return experiment


def _zoo_folders() -> list[Path]:
    """Return the folders that may contain entries; an entry of the first folder wins."""
    own = os.environ.get(FOLDER)
    packaged = Path(__file__).parents[1] / "zoo"
    return [*([Path(own)] if own else []), cache_folder() / "zoo", packaged]


def _entries() -> dict[str, Path]:
    files = [file for folder in reversed(_zoo_folders()) for file in folder.glob("*/zoo.json")]
    return {file.parent.name: file.parent for file in files}


def _read_row(entry: Path) -> Row:
    return from_json(Row, read_json(entry / "zoo.json", ADVICE))


def list_zoo() -> list[Row]:
    """Return the rows of all entries by name."""
    return [_read_row(entry) for _, entry in sorted(_entries().items())]


def find_row(name: str) -> Row:
    """Return the row of an entry, with or without `zoo:`."""
    return _read_row(zoo_folder(name))


def zoo_folder(name: str) -> Path:
    """Return the folder of an entry, with or without `zoo:`."""
    name, entries = name.removeprefix(PREFIX), _entries()
    if name not in entries:
        hint = did_you_mean(name, sorted(entries)) if entries else f"it is empty; see {FOLDER}"
        raise UserError(f"the zoo has no {name!r}; {hint}")
    return entries[name]


def fetch_entry(url: str, name: str) -> Path:
    """Copy an entry from a folder of entries, local or remote, into the cache; return its folder.

    It replaces an entry of the same name, and only if it is complete.
    """
    from paceline.run_folder.checkpoint_file import Damaged, read_variables
    from paceline.run_folder.checkpoints import file_of

    _check_name(name)
    store = open_to_read(url if is_remote(url) else Path(url).expanduser().absolute().as_uri())
    target = cache_folder() / "zoo" / name

    def fetch(file: str) -> Path:
        if not store.get(f"{name}/{file}", entry / file):
            raise UserError(
                f"there is no {store.url}/{name}/{file}; give the folder that contains {name}/"
            )
        return entry / file

    with explained("write", target), replacing_path(target) as entry:
        for file in ("zoo.json", "config.json", "result.json"):
            fetch(file)
        row = _read_row(entry)
        if row.name != name:
            raise UserError(f"{store.url}/{name} is the entry {row.name!r}; it was renamed")
        weights = fetch(file_of(Path("checkpoints"), row.step).as_posix())
        try:
            read_variables(weights, row.step)
        except Damaged as error:
            raise UserError(f"the weights of {store.url}/{name} are damaged: {error}") from error
    return target


def _check_name(name: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"the name is {name!r}; it may have letters, digits, '.', '_' and '-'")


def add_entry(row: Row, run: Path, folder: Path) -> Path:
    """Make an entry from a finished run in `folder`, and return its folder."""
    from paceline.run_folder.weights import write_weights

    _check_name(row.name)
    target = folder / row.name
    if target.exists():
        raise UserError(f"{target} exists; remove it, or give another name")
    config = read_json(run / "config.json", ADVICE)
    experiment = _without_code(Experiment.from_json(config["experiment"]), row.name)
    anywhere = replace(experiment, data=replace(experiment.data, dir=""))
    config |= {"experiment": anywhere.to_json(), "data_dir": ""}
    with explained("write", target), replacing_path(target) as entry:
        (entry / "checkpoints").mkdir(parents=True)
        write_json(entry / "config.json", sealed(config))
        shutil.copyfile(run / "result.json", entry / "result.json")
        write_weights(run / "checkpoints", entry / "checkpoints", row.step, anywhere.digest())
        write_json(entry / "zoo.json", sealed(asdict(row)))
    return target
