"""CIFAR-10 and CIFAR-100 in their authors' files: the binary layout, and the Python pickles.

It finds the files, reads and checks them with NumPy, and builds a source that is held in memory.
It downloads nothing (`fetch` does), and `cifar_pickle` runs nothing that a pickle asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.data.digests import arrays_digest
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats.cifar_pickle import BadPickle, read_pickle
from paceline.formats.source_folder import source_folder
from paceline.storage.files import explained, is_file, read_text

if TYPE_CHECKING:
    from paceline.data.source import Source

Examples = tuple[np.ndarray, np.ndarray]
"""Images and labels."""
IMAGE_BYTES = 3 * 32 * 32
CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@dataclass(frozen=True)
class Layout:
    """Which files have what. A binary record is its labels, one byte each, and then the pixels.
    The last label counts. In the Python layout, `label_bytes` is 0, the labels have a key."""

    source: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    label_bytes: int = 0
    label_key: bytes = b""

    @property
    def num_classes(self) -> int:
        return 10 if self.source == "cifar10" else 100

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test)


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_BINARY_BATCHES = tuple(f"{name}.bin" for name in _BATCHES)
LAYOUTS = (
    Layout(
        "cifar10", "cifar-10-batches-bin", _BINARY_BATCHES, "test_batch.bin", "batches.meta.txt", 1
    ),
    Layout(
        "cifar10",
        "cifar-10-batches-py",
        _BATCHES,
        "test_batch",
        "batches.meta",
        label_key=b"labels",
    ),
    Layout("cifar100", "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", 2),
    Layout("cifar100", "cifar-100-python", ("train",), "test", "meta", label_key=b"fine_labels"),
)


def build_cifar10(data: Data) -> Source:
    return _build("cifar10", data)


def build_cifar100(data: Data) -> Source:
    return _build("cifar100", data)


def find_layout(source: str, folder: Path) -> tuple[Layout, Path] | None:
    """Return a layout with files in `folder` or in its usual subfolder, and that folder."""
    for layout in LAYOUTS:
        for place in (folder, folder / layout.folder):
            if layout.source == source and any(is_file(place / file) for file in layout.files):
                return layout, place
    return None


def check_complete(layout: Layout, place: Path, advice: str) -> None:
    """Raise UserError with the `advice` if a file of the layout is missing in `place`."""
    missing = [file for file in layout.files if not is_file(place / file)]
    if missing:
        raise UserError(f"{place} has no {', '.join(missing)}; {advice}")


def read_splits(layout: Layout, place: Path) -> tuple[Examples, Examples]:
    """Return the training and the test split: images as uint8 [n, 32, 32, 3], labels int32 [n]."""
    parts = [_read_file(layout, place / file) for file in layout.files]
    images, labels = zip(*parts[:-1], strict=True)
    return (np.concatenate(images), np.concatenate(labels)), parts[-1]


def _build(source: str, data: Data) -> Source:
    from paceline.data.source import Source
    from paceline.formats.arrays import in_memory

    layout, place = _find(source, data.dir)
    splits = read_splits(layout, place)
    train, test = (in_memory(*examples) for examples in splits)
    digest = arrays_digest(*splits[0], *splits[1])
    return Source(train, test, read_class_names(layout, place), (32, 32, 3), digest)


def _find(source: str, given: str) -> tuple[Layout, Path]:
    advice = f"run `paceline data fetch {source} {given or 'DIR'}`"
    folder = source_folder(given, advice)
    found = find_layout(source, folder)
    if found is None:
        usual = " or ".join(layout.folder for layout in LAYOUTS if layout.source == source)
        raise UserError(f"{folder} has no {source} files, nor {usual}; {advice}")
    check_complete(*found, f"fetch {source} again into a new folder: {advice}")
    return found


def _read_file(layout: Layout, file: Path) -> Examples:
    read = _read_binary if layout.label_bytes else _read_pickle
    pixels, labels = read(layout, file)
    images = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, labels.astype(np.int32)


def _read_binary(layout: Layout, file: Path) -> Examples:
    content = np.frombuffer(_read_bytes(file), np.uint8)
    record = layout.label_bytes + IMAGE_BYTES
    whole, rest = divmod(content.size, record)
    if rest or not whole:
        found = f"its record at offset {whole * record} has {rest} of {record} bytes"
        size = f"({content.size} bytes in all)"
        raise UserError(f"{file} is cut short: {found} {size}; fetch it again")
    records = content.reshape(whole, record)
    labels = records[:, layout.label_bytes - 1]
    bad = np.flatnonzero(labels >= layout.num_classes)
    if bad.size:
        offset = int(bad[0]) * record + layout.label_bytes - 1
        place = f"at offset {offset} (record {bad[0]})"
        allowed = f"labels are 0 to {layout.num_classes - 1}"
        raise UserError(f"{file} has label {labels[bad[0]]} {place}; {allowed}")
    return records[:, layout.label_bytes :], labels


def _read_pickle(layout: Layout, file: Path) -> Examples:
    content = _unpickle(file)
    pixels: Any = content.get(b"data")
    labels: Any = content.get(layout.label_key)
    is_array = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8
    if not is_array or pixels.shape[1:] != (IMAGE_BYTES,):
        raise UserError(f"{file}: its 'data' is not a uint8 array of rows of {IMAGE_BYTES} bytes")
    is_list = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not is_list or not len(labels) == len(pixels) > 0:
        needed = f"a list of {len(pixels)} whole numbers, one for each image"
        raise UserError(f"{file}: its '{layout.label_key.decode()}' is not {needed}")
    for record, label in enumerate(labels):
        if not 0 <= label < layout.num_classes:
            allowed = f"labels are 0 to {layout.num_classes - 1}"
            raise UserError(f"{file} has label {label} in record {record}; {allowed}")
    return pixels, np.array(labels)


def read_class_names(layout: Layout, place: Path) -> tuple[str, ...]:
    """Return the class names of the layout's file; without that file, the usual ones."""
    file = place / layout.names
    if not is_file(file):
        numbers = tuple(str(label) for label in range(layout.num_classes))
        return CIFAR10_CLASSES if layout.source == "cifar10" else numbers
    if layout.label_bytes:
        # Not `splitlines`: a name may contain what Unicode also counts as the end of a line.
        lines = read_text(file).split("\n")
        names = [line.strip() for line in lines if line.strip()]
    else:
        found = _unpickle(file).get(layout.label_key.removesuffix(b"s") + b"_names")
        found = found if isinstance(found, list) else []
        names = [name.decode(errors="replace") for name in found if isinstance(name, bytes)]
    if len(names) != layout.num_classes:
        expected = f"{layout.source} has {layout.num_classes}"
        raise UserError(f"{file} has {len(names)} class names; {expected}")
    return tuple(names)


def _read_bytes(file: Path) -> bytes:
    with explained("read", file):
        return file.read_bytes()


def _unpickle(file: Path) -> dict[Any, Any]:
    try:
        return read_pickle(_read_bytes(file))
    except BadPickle as error:
        raise UserError(f"{file} is not a CIFAR pickle: {error}; it was not run") from None
