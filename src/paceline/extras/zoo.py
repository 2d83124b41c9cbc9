"""The zoo: trained models with the command that made them and the digests to compare a repetition
with.

An entry is a small run folder: config.json, result.json, one checkpoint with weights only, and
zoo.json, its row in the table. Entries are in the package, in the cache, where `fetch_entry` copies
them to, and in the folder that the environment variable PACELINE_ZOO names. `zoo:NAME` stands for
an entry wherever a run is expected.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paceline.errors import UserError, did_you_mean
from paceline.experiment.dataclass_json import from_json
from paceline.experiment.experiment import Experiment
from paceline.storage.backends import Store, cache_folder, is_remote
from paceline.storage.files import read_json, replacing_path, sealed, write_json
from paceline.storage.transfer import fetch_files

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
    """Digest of the whole state at the end of the training."""
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
    """Refuse code of somebody's own: an entry must be safe to use and to train."""
    if experiment.model.build or experiment.data.build:
        raise UserError(f"{name} has model.build or data.build; an entry of the zoo cannot")
    return experiment


def zoo_folders() -> list[Path]:
    """Return the folders that may contain entries, first the one of the environment."""
    own = Path(__file__).parents[1] / "zoo"
    return [*(Path(each) for each in [os.environ.get(FOLDER, "")] if each), _fetched(), own]


def _fetched() -> Path:
    return cache_folder() / "zoo"


def list_zoo() -> list[Row]:
    """Return the rows of all entries by name."""
    found: dict[str, Row] = {}
    for folder in reversed(zoo_folders()):
        for file in folder.glob("*/zoo.json"):
            found[file.parent.name] = from_json(Row, read_json(file, ADVICE))
    return [found[name] for name in sorted(found)]


def find_row(name: str) -> Row:
    """Return the row of an entry, with or without `zoo:`."""
    rows = {row.name: row for row in list_zoo()}
    name = name.removeprefix(PREFIX)
    if name not in rows:
        hint = did_you_mean(name, list(rows)) if rows else f"it is empty; see {FOLDER}"
        raise UserError(f"the zoo has no {name!r}; {hint}")
    return rows[name]


def zoo_folder(name: str) -> Path:
    """Return the folder of an entry, with or without `zoo:`."""
    row = find_row(name)
    folders = (folder / row.name for folder in zoo_folders())
    return next(folder for folder in folders if (folder / "zoo.json").exists())


def fetch_entry(url: str, name: str, report: Callable[[str], None]) -> Path:
    """Copy an entry from a folder of entries, local or remote, into the cache; return its folder.

    It is there only if it is whole. An entry of the same name in the cache is replaced.
    """
    from paceline.runs.checkpoint_file import Damaged, read_variables
    from paceline.runs.checkpoints import file_of

    store = Store(url if is_remote(url) else Path(url).expanduser().absolute().as_uri())
    _check_name(name)
    target = _fetched() / name
    with replacing_path(target) as entry:
        (entry / "checkpoints").mkdir(parents=True)
        _fetch(store, name, ("zoo.json", "config.json", "result.json"), entry, report)
        row = from_json(Row, read_json(entry / "zoo.json", ADVICE))
        if row.name != name:
            raise UserError(f"{store.url}/{name} is the entry {row.name!r}; it was renamed")
        weights = file_of(Path("checkpoints"), row.step).as_posix()
        _fetch(store, name, (weights,), entry, report)
        try:
            read_variables(entry / weights, row.step)
        except Damaged as error:
            raise UserError(f"{store.url}/{name}/{weights} is damaged: {error}") from error
    return target


def _fetch(
    store: Store, name: str, files: Sequence[str], entry: Path, report: Callable[[str], None]
) -> None:
    def check(key: str, found: bool) -> None:
        if not found:
            raise UserError(f"there is no {store.url}/{key}; give the folder that has {name}/")

    names = {f"{name}/{file}": file for file in files}
    fetch_files(store, dict.fromkeys(names, 0), entry, report, check, names)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"the name is {name!r}; it may have letters, digits, '.', '_' and '-'")


def add_entry(row: Row, run: Path, folder: Path) -> Path:
    """Make an entry of a finished run in `folder`, and return its folder."""
    from paceline.runs.weights_file import write_weights

    _check_name(row.name)
    entry = folder / row.name
    if entry.exists():
        raise UserError(f"{entry} exists; remove it, or give another name")
    (entry / "checkpoints").mkdir(parents=True)
    try:
        config = read_json(run / "config.json", ADVICE)
        experiment = _without_code(Experiment.from_json(config["experiment"]), row.name)
        anywhere = replace(experiment, data=replace(experiment.data, dir=""))
        config |= {"experiment": anywhere.to_json(), "data_dir": ""}
        write_json(entry / "config.json", sealed(config))
        shutil.copyfile(run / "result.json", entry / "result.json")
        folders = run / "checkpoints", entry / "checkpoints"
        write_weights(*folders, row.step, anywhere.digest())
        write_json(entry / "zoo.json", sealed(asdict(row)))
    except BaseException:
        shutil.rmtree(entry)
        raise
    return entry
