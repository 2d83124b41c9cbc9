"""Targets of `hostile_inputs.py`: files of data sets."""

import io
import json
import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mutations import Try, bytes_or_json, damaged, each_refused, mutate, reading, reading_files
from paceline.experiment.experiment import Records
from paceline.formats import arrays, cifar
from paceline.formats.image_folder import inspect_image
from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.index import load_index
from paceline.formats.tfrecord.record import BadRecord, framed, read_all
from paceline.formats.tfrecord.shards import complete_keys, find_splits, noted_keys, read_labels
from paceline.results.image_bytes import find_fault
from small_images import encode


def records(folder: Path) -> Try:
    """Shards, their index, labels.txt and dataset.json."""
    keys = ("image/encoded", "image/class/label")
    written = [record.encode({keys[0]: bytes([k]) * 9, keys[1]: k}) for k in range(5)]
    notes = {"image_key": keys[0], "first_label": 0, "raw_shape": [1, 3, 3]}
    for name in ("train-00000-of-00001", "validation-00000-of-00001"):
        (folder / name).write_bytes(b"".join(map(framed, written)))
    (folder / "labels.txt").write_bytes(b"cat\ndog\ncow\n")
    (folder / "dataset.json").write_text(json.dumps(notes))

    def load(**settings: Any) -> Any:
        found = find_splits(str(folder))
        shards = [shard for split in found.values() for shard in split]
        return load_index(str(folder), shards, keys, **settings)

    truth, index = load(), folder / ".paceline-index.npz"

    def read(path: Path, content: bytes) -> None:
        if path != index:
            index.unlink()
        if "-of-" in path.name:
            found = [each for _, each in read_all(io.BytesIO(content), path.name, len(content))]
            assert all(isinstance(each, BadRecord) or each in written for each in found)
        with each_refused():
            complete_keys(Records(), noted_keys(str(folder)))
        with each_refused():
            assert len(read_labels(str(folder))) <= content.count(b"\n") + 4
        with each_refused():
            parts = load(skip_bad=len(content) % 2 == 0)
            for part, right in zip(parts, truth if path == index else parts, strict=True):
                np.testing.assert_array_equal(part.offsets, right.offsets)
                np.testing.assert_array_equal(part.labels, right.labels)

    return reading_files(folder, read, {"dataset.json": bytes_or_json(notes)})


def cifar_files(folder: Path) -> Try:
    """Pickles and binary files."""
    layouts = {each.folder: each for each in cifar.LAYOUTS}
    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    content = {b"data": pixels, b"labels": [3, 9], b"filenames": [b"a.png", b"b.png"]}
    pickles = [pickle.dumps(content, protocol) for protocol in range(6)]
    pickles += [
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of two billion places
        b"cbuiltins\nbytes\n(I1000000000000\ntR.",
        b"cnumpy\ndtype\n(VO8\nI0\nI1\ntR(I3\nV|\nNNNI-1\nI-1\nI63\ntb.",
        b"\x80\x03\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    ]
    binary = b"".join(bytes([label]) + bytes(3072) for label in (1, 2))

    def attempt(chance: random.Random) -> bytes:
        is_binary = chance.random() < 0.2
        content = mutate(binary if is_binary else chance.choice(pickles), chance)
        (folder / "batch").write_bytes(content)
        with each_refused():
            layout = layouts["cifar-10-batches-bin" if is_binary else "cifar-10-batches-py"]
            images, labels = cifar.read_file(layout, folder / "batch")
            assert (images.shape[1:], images.dtype) == ((32, 32, 3), np.uint8)
            assert len(labels) == len(images)
            assert 0 <= labels.min() <= labels.max() < 10
        return content

    return attempt


def array_files(folder: Path) -> Try:
    images, labels = np.zeros((3, 4, 4, 3), np.uint8), np.array([0, 1, 2])
    arrays.save_arrays(folder / "data", (images, labels), classes=["a", "b", "c"])

    def read(path: Path, content: bytes) -> None:
        with each_refused():
            arrays.load_arrays(folder / "data")

    return reading_files(folder / "data", read)


def images(folder: Path) -> Try:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 3), np.uint8)
    seeds = [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"]
    seeds += [encode(pixels, kind) for kind in ("JPEG", "PNG", "BMP", "GIF", "WEBP")]

    def read(content: bytes) -> None:
        assert find_fault(content) or not content.startswith(b"%!PS"), "an EPS file was read"
        with suppress(ValueError):
            assert inspect_image(content)[1] > 0

    return reading(damaged(*seeds), read)
