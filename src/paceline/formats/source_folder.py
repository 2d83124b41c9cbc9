"""The folder that a source reads: it must be given and exist; hidden entries are ignored. And the
names that people give to the splits of a data set."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from paceline.errors import UserError
from paceline.storage.files import explained, is_folder, retry

SPLIT_NAMES = {
    "train": ("train", "training"),
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "val", "dev"),
}


def source_folder(given: str, advice: str) -> Path:
    """Return the folder that `--data.dir` gives. Raise UserError with the `advice` without one."""
    if not given:
        raise UserError(f"the folder of the data is needed: pass --data.dir DIR; {advice}")
    folder = Path(given).expanduser()
    if not is_folder(folder):
        raise UserError(f"there is no folder {folder}; {advice}")
    return folder


def name_splits(names: Iterable[str], where: str | Path) -> dict[str, str]:
    """Return which of the names is the train, the test and the validation split, in any case. If
    only one of test and validation is there, it is the test split."""
    found: dict[str, str] = {}
    for split, known in SPLIT_NAMES.items():
        fitting = [name for name in names if name.lower() in known]
        if len(fitting) > 1:
            several = " and ".join(fitting)
            raise UserError(f"{where} has {several}, both {split} splits; keep one of them")
        if fitting:
            found[split] = fitting[0]
    if "validation" in found and "test" not in found:
        found["test"] = found.pop("validation")
    return found


def split_of(name: str) -> str:
    """Return the split that a word of a name says, such as train of my-train-00; else nothing."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((split for split, known in SPLIT_NAMES.items() if {*known} & {*words}), "")


def visible_entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, in no order, without hidden ones and what macOS
    adds to archives."""
    with explained("read", Path(folder)), os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith((".", "__MACOSX"))]


def read_bytes(file: Path) -> bytes:
    """Return the content of a file. Raise UserError or PassingFault if it cannot be read."""
    with explained("read", file):
        return retry(file.read_bytes)
