"""What a folder of shards contains: the files of each split, and notes, keys and class names.

Known names: `train-00000-of-01024`, `validation-...`, with or without .tfrecord(s);
`train.tfrecords`, `eval.tfrecords`; and `NAME-train.tfrecord-00000-of-00008`. The conversion
writes its notes, with keys and first label, into `dataset.json`. Tars and Parquet files have a
word for their split in their name or in that of their folder. No TensorFlow.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from paceline.errors import UserError
from paceline.experiment.data import Records
from paceline.experiment.experiment import check_records
from paceline.experiment.fields import Json, from_json
from paceline.formats.image_list import check_share, inner_folder, subfolders
from paceline.formats.source_folder import name_splits, split_of, visible_entries
from paceline.formats.tfrecord.record import Shard
from paceline.storage.files import explained, read_json, read_text

NOTES, LABELS = "dataset.json", "labels.txt"
IMAGE_KEY, LABEL_KEY = "image/encoded", "image/class/label"
ADVICE = "convert again, or remove it and pass --records.image-key ..."
MOST_UNNAMED_CLASSES = 1_000_000
_NAME = re.compile(
    r"(?:.+[-_])?(train|test|eval|validation|valid|val)"
    r"(\.tfrecords?)?(?:-(\d{1,9})-of-(\d{1,9}))?(\.tfrecords?)?(?:\.gz)?",
    re.ASCII,
)
_NUMBER = re.compile(r"-(\d{1,9})-of-(\d{1,9})")


def find_shards(folder: str) -> dict[str, list[Shard]]:
    """Return the shards of each split, in order; all of `n-of-m` must be there."""
    splits: dict[str, dict[tuple[int, int], Shard]] = {}
    for shard in _list_files(folder):
        match = _NAME.fullmatch(os.path.basename(shard.path))
        if match and (match[3] or match[2] or match[5]):
            place = (int(match[3] or 0), int(match[4] or 1))
            splits.setdefault(match[1], {})[place] = shard
    for split, shards in splits.items():
        _check_complete(folder, split, list(shards))
    return {split: [shards[place] for place in sorted(shards)] for split, shards in splits.items()}


def find_packed(folder: str, ending: str) -> dict[str, list[Shard]]:
    """Return the files of each split that end in .tar or .parquet: named like train-0000.tar, or in
    folders like train/. Files without a word for a split are of the train split."""
    root, splits = inner_folder(Path(folder)), dict[str, list[Shard]]()
    for place in (root, *(root / name for name in subfolders(root))):
        for shard in _list_files(str(place)):
            if shard.path.endswith(ending):
                split = split_of(os.path.relpath(shard.path, root)) or "train"
                splits.setdefault(split, []).append(shard)
    for split, shards in splits.items():
        numbers = [_NUMBER.search(os.path.basename(shard.path)) for shard in shards]
        _check_complete(folder, split, [(int(n[1]), int(n[2])) for n in numbers if n])
    return splits


def _check_complete(folder: str, split: str, numbers: Sequence[tuple[int, int]]) -> None:
    """Raise UserError if one of the shards n of m is missing."""
    totals = sorted({total for _, total in numbers})
    if len(totals) > 1:
        found = f"{split} shards of {totals[0]} and of {totals[1]}"
        raise UserError(f"{folder} has {found}; keep those of one set only")
    total, there = (totals or [0])[0], set(numbers)
    missing = next((number for number in range(total) if (number, total) not in there), None)
    if missing is not None:
        name = f"{split}-{missing:05d}-of-{total:05d}"
        found = f"{len(numbers)} of {total} {split} shards"
        raise UserError(f"{folder} has {found}; {name} is missing")


def _list_files(folder: str) -> list[Shard]:
    with explained("read", Path(folder)):
        files = [(entry.path, entry.stat()) for entry in visible_entries(folder) if entry.is_file()]
    return [Shard(path, stat.st_size, str(stat.st_mtime_ns)) for path, stat in sorted(files)]


def find_splits(folder: str, ending: str = "", share: float = 0.0) -> dict[str, list[Shard]]:
    """Return the shards of the splits: train, test unless a `share` of train becomes it, and
    perhaps validation. Without an `ending`, they are TFRecords."""
    splits = find_packed(folder, ending) if ending else find_shards(folder)
    names = name_splits(splits, folder)
    check_share(share, folder if "test" in names else "")
    if "train" not in names or not (share or "test" in names):
        found = f"only {', '.join(splits)}" if splits else "no shards"
        usual = "train.tfrecords and eval.tfrecords" if not ending else "in folders train and val"
        raise UserError(
            f"{folder} has {found}; files are named like train-00000-of-00008{ending} and "
            f"validation-00000-of-00002{ending}, or {usual}; --data.split 0.1 holds out a tenth"
        )
    return {split: splits[name] for split, name in names.items()}


def read_notes(folder: str) -> Json:
    """Return the notes of the conversion; empty if a different program wrote the folder."""
    path = Path(folder, NOTES)
    return read_json(path, ADVICE) if read_text(path) else {}


def noted_keys(folder: str) -> Records:
    """Return how the conversion's notes say that records are read."""
    names, notes = [field.name for field in fields(Records)], read_notes(folder)
    try:
        keys = from_json(Records, {name: notes[name] for name in names if name in notes})
        check_records(keys)
    except UserError as error:
        raise UserError(f"{Path(folder, NOTES)} is damaged: {error}; {ADVICE}") from None
    return keys


def complete_keys(given: Records, noted: Records) -> Records:
    """Return the keys that were given, else those that the conversion noted, else ImageNet's."""
    labels = [keys.first_label for keys in (given, noted) if keys.first_label >= 0]
    return Records(
        given.image_key or noted.image_key or IMAGE_KEY,
        given.label_key or noted.label_key or LABEL_KEY,
        labels[0] if labels else 0,
        given.raw_shape or noted.raw_shape,
        given.raw_order or noted.raw_order or "channels_last",
    )


def read_labels(folder: str) -> tuple[str, ...]:
    """Return the class names, one per line of labels.txt; without that file, none."""
    # Not `splitlines`: a name may contain what Unicode also counts as the end of a line.
    text = read_text(Path(folder, LABELS))
    return tuple(line.strip() for line in text.split("\n") if line.strip())


def number_classes(highest: int, first_label: int) -> tuple[str, ...]:
    """Return numbers as the names of the classes, up to the highest label."""
    if highest < first_label:
        flag = f"--records.first-label {first_label}"
        raise UserError(f"the highest label is {highest}; with {flag} there are no classes")
    if highest - first_label >= MOST_UNNAMED_CLASSES:
        advice = "give the classes in labels.txt, one per line, or another --records.label-key"
        raise UserError(f"the highest label is {highest}; {advice}")
    return tuple(str(label) for label in range(highest - first_label + 1))
