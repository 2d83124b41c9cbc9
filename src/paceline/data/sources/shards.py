"""What a folder of TFRecords holds: its shards by split, its class names, and under which keys its records lie. No TensorFlow.

Known names: `train-00000-of-01024`, `validation-...`, with or without .tfrecord(s) and .gz; `train.tfrecords`,
`eval.tfrecords`; and `NAME-train.tfrecord-00000-of-00008`. `dataset.json`, written by the conversion, notes keys and the first label.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.experiment import Data
from paceline.data.sources import example
from paceline.data.sources.index import ShardIndex
from paceline.data.sources.records import BadRecord, Shard, read_record
from paceline.errors import UserError, did_you_mean
from paceline.run_folder.folder import explained

NOTES, LABELS = "dataset.json", "labels.txt"
IMAGE_KEY, LABEL_KEY = "image/encoded", "image/class/label"
TEST_NAMES = ("test", "eval", "validation", "val")
"""Of the splits in a folder, the first of these is the test split: 002 evaluates `eval`, and keeps `validation` apart."""
_NAME = re.compile(
    r"(?:.+[-_])?(train|test|eval|validation|val)(\.tfrecords?)?(?:-(\d+)-of-(\d+))?(\.tfrecords?)?(?:\.gz)?",
    re.ASCII,
)


@dataclass(frozen=True)
class Keys:
    """How records are read. `raw_shape` (height, width, channels) is empty where pictures are JPEG or PNG."""

    image_key: str
    label_key: str
    first_label: int
    raw_shape: tuple[int, ...] = ()
    raw_order: str = "channels_last"

    @property
    def raw_bytes(self) -> int:
        return math.prod(self.raw_shape) if self.raw_shape else 0


def find_shards(folder: str) -> dict[str, list[Shard]]:
    """The shards of each split, in order; all of `n-of-m` must be there."""
    splits: dict[str, dict[tuple[int, int], Shard]] = {}
    for shard in _list_files(folder):
        match = _NAME.fullmatch(shard.name)
        if match and (match[3] or match[2] or match[5]):
            place = (int(match[3] or 0), int(match[4] or 1))
            splits.setdefault(match[1], {})[place] = shard
    for split, shards in splits.items():
        totals = sorted({total for _, total in shards})
        if len(totals) > 1:
            raise UserError(
                f"{folder} has {split} shards of {totals[0]} and of {totals[1]}; keep those of one set only"
            )
        missing = sorted(set(range(totals[0])) - {number for number, _ in shards})
        if missing:
            raise UserError(
                f"{folder} has {len(shards)} of {totals[0]} {split} shards; "
                f"{split}-{missing[0]:05d}-of-{totals[0]:05d} is missing"
            )
    return {split: [shards[place] for place in sorted(shards)] for split, shards in splits.items()}


def train_and_test(folder: str) -> dict[str, list[Shard]]:
    """The shards to train and to test on, under the names of their splits: the first is `train`."""
    splits = find_shards(folder)
    test = next((name for name in TEST_NAMES if name in splits), None)
    if "train" not in splits or test is None:
        found = f"only {', '.join(splits)}" if splits else "no shards"
        raise UserError(
            f"{folder} has {found}; TFRecords are named train-00000-of-00008 and validation-00000-of-00002, or train.tfrecords "
            "and eval.tfrecords"
        )
    return {"train": splits["train"], test: splits[test]}


def read_notes(folder: str) -> dict[str, Any]:
    """What the conversion noted; empty if others made the folder."""
    text = _read_text(folder, NOTES)
    try:
        notes = json.loads(text) if text else {}
    except ValueError as error:
        raise UserError(
            f"{folder}/{NOTES} is damaged ({error}); convert again, or remove it and give --data.image-key ..."
        ) from error
    if not isinstance(notes, dict):
        raise UserError(
            f"{folder}/{NOTES} is damaged (no JSON object); convert again, or remove it"
        )
    return notes


def read_labels(folder: str) -> tuple[str, ...]:
    """Class names, one per line; lines such as `0:cat` lose their number. Empty without labels.txt."""
    lines = [
        line.strip() for line in (_read_text(folder, LABELS) or "").splitlines() if line.strip()
    ]
    numbered = [re.fullmatch(r"(\d+):\s*(.+)", line) for line in lines]
    if lines and all(match and int(match[1]) == place for place, match in enumerate(numbered)):
        return tuple(match[2] for match in numbered if match)
    return tuple(lines)


def choose_keys(data: Data, notes: dict[str, Any]) -> Keys:
    """The keys that were given, else those noted, else ImageNet's."""
    if data.first_label not in (-1, 0, 1):
        raise UserError(
            f"data.first-label is {data.first_label}; it must be 0, 1, or -1 for what the conversion noted"
        )
    if data.raw_shape and (len(data.raw_shape) != 3 or min(data.raw_shape) < 1):
        raise UserError(
            f"data.raw-shape is {data.raw_shape}; it must be height, width and channels, such as 32 32 3"
        )
    noted = Keys(
        notes.get("image_key", IMAGE_KEY),
        notes.get("label_key", LABEL_KEY),
        notes.get("first_label", 0),
        tuple(notes.get("raw_shape", ())),
        notes.get("raw_order", "channels_last"),
    )
    return Keys(
        data.image_key or noted.image_key,
        data.label_key or noted.label_key,
        noted.first_label if data.first_label < 0 else data.first_label,
        data.raw_shape or noted.raw_shape,
        data.raw_order or noted.raw_order,
    )


def fit_keys(keys: Keys, part: ShardIndex) -> Keys:
    """Compare the keys with the first record of a shard, and take the shape of plain bytes from it where none was given."""
    path, offset = part.shard.path, int(part.offsets[0])
    with explained("read", Path(path)), open(path, "rb") as file:
        data = read_record(file, path, offset, part.shard.size)
    try:
        features = example.decode(data)
    except ValueError as error:
        raise BadRecord(path, offset, f"the record is {error},") from error
    for flag, key in (("image-key", keys.image_key), ("label-key", keys.label_key)):
        if key not in features:
            known = sorted(features)
            raise BadRecord(
                path,
                offset,
                f"no feature {key!r}: give --data.{flag}; {did_you_mean(key, known)}; looked",
            )
    picture = features[keys.image_key][0] if features[keys.image_key] else b""
    if (
        keys.raw_shape
        or not isinstance(picture, bytes)
        or picture.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n"))
    ):
        return keys
    sides = [int(features[name][0]) for name in ("height", "width") if features.get(name)]
    channels = len(picture) // math.prod(sides) if len(sides) == 2 and min(sides) > 0 else 0
    if channels not in (1, 3, 4) or channels * math.prod(sides) != len(picture):
        raise BadRecord(
            path,
            offset,
            f"a picture is neither JPEG nor PNG; for {len(picture)} plain bytes give --data.raw-shape H W C; it lies",
        )
    return Keys(
        keys.image_key,
        keys.label_key,
        keys.first_label,
        (sides[0], sides[1], channels),
        keys.raw_order,
    )


def _list_files(folder: str) -> list[Shard]:
    found = []
    with explained("read", Path(folder)), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_file():
                stat = entry.stat()
                found.append(
                    Shard(
                        str(Path(folder, entry.name)),
                        entry.name,
                        stat.st_size,
                        str(stat.st_mtime_ns),
                    )
                )
    return sorted(found, key=lambda shard: shard.name)


def _read_text(folder: str, name: str) -> str | None:
    path = f"{folder.rstrip('/')}/{name}"
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
