"""CIFAR-10 and CIFAR-100 as their authors ship them: the binary layout, and the pickles of the Python layout.

It finds the files, reads and checks them with NumPy and gives a source held in memory. It downloads nothing (`fetch` does)
and runs nothing that a pickle asks for: only what rebuilds arrays is let through.
"""

from __future__ import annotations

import _codecs
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config.experiment import Data
from paceline.errors import UserError

if TYPE_CHECKING:
    from paceline.data.source import Source

IMAGE_BYTES = 3 * 32 * 32
CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


@dataclass(frozen=True)
class Layout:
    """Which files hold what. A binary record is its labels, one byte each, and then the pixels; the last label counts."""

    source: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    num_classes: int
    label_bytes: int = 0
    """0 in the Python layout."""
    label_key: bytes = b""
    names_key: bytes = b""

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test)


BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
LAYOUTS = (
    Layout(
        "cifar10",
        "cifar-10-batches-bin",
        tuple(f"{b}.bin" for b in BATCHES),
        "test_batch.bin",
        "batches.meta.txt",
        10,
        1,
    ),
    Layout(
        "cifar10",
        "cifar-10-batches-py",
        BATCHES,
        "test_batch",
        "batches.meta",
        10,
        0,
        b"labels",
        b"label_names",
    ),
    Layout(
        "cifar100", "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", 100, 2
    ),
    Layout(
        "cifar100",
        "cifar-100-python",
        ("train",),
        "test",
        "meta",
        100,
        0,
        b"fine_labels",
        b"fine_label_names",
    ),
)


def build_cifar10(data: Data) -> Source:
    return _build("cifar10", data)


def build_cifar100(data: Data) -> Source:
    return _build("cifar100", data)


def find_layout(source: str, folder: Path) -> tuple[Layout, Path] | None:
    """The layout of which a file lies in `folder` or in its usual subfolder, and where; None if there is none."""
    for layout in LAYOUTS:
        for place in (folder, folder / layout.folder):
            if layout.source == source and any((place / file).is_file() for file in layout.files):
                return layout, place
    return None


def missing_files(layout: Layout, place: Path) -> list[str]:
    return [file for file in layout.files if not (place / file).is_file()]


def _build(source: str, data: Data) -> Source:
    from paceline.data.source import Source
    from paceline.data.sources.arrays import in_memory

    layout, place = _find(source, data.dir)
    parts = [_read_file(layout, place / file) for file in layout.files]
    train_images = np.concatenate([images for images, _ in parts[:-1]])
    train_labels = np.concatenate([labels for _, labels in parts[:-1]])
    classes = _read_names(layout, place / layout.names)
    return Source(
        in_memory(train_images, train_labels), in_memory(*parts[-1]), classes, (32, 32, 3)
    )


def _find(source: str, given: str) -> tuple[Layout, Path]:
    advice = f"run `paceline data fetch {source} {given or 'DIR'}`"
    if not given:
        raise UserError(
            f"the source {source} needs its folder: give --data.dir DIR, after `paceline data fetch {source} DIR`"
        )
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; {advice}")
    found = find_layout(source, folder)
    if found is None:
        usual = " or ".join(layout.folder for layout in LAYOUTS if layout.source == source)
        raise UserError(f"{folder} holds no {source} files, nor {usual}; {advice}")
    missing = missing_files(*found)
    if missing:
        raise UserError(
            f"{found[1]} has no {', '.join(missing)}; fetch {source} again into a new folder: {advice}"
        )
    return found


def _read_file(layout: Layout, file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pictures as uint8 [n, 32, 32, 3] and labels as int32 [n]."""
    try:
        pixels, labels = (
            _read_binary(layout, file) if layout.label_bytes else _read_pickle(layout, file)
        )
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels.astype(
        np.int32
    )


def _read_binary(layout: Layout, file: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(file, np.uint8)
    record = layout.label_bytes + IMAGE_BYTES
    whole, rest = divmod(content.size, record)
    if rest or not whole:
        raise UserError(
            f"{file} is cut short: its record at offset {whole * record} has {rest} of {record} bytes "
            f"({content.size} bytes in all); fetch it again"
        )
    records = content.reshape(whole, record)
    labels = records[:, layout.label_bytes - 1]
    bad = np.flatnonzero(labels >= layout.num_classes)
    if bad.size:
        offset = int(bad[0]) * record + layout.label_bytes - 1
        raise UserError(
            f"{file} has label {labels[bad[0]]} at offset {offset} (record {bad[0]}); labels are 0 to {layout.num_classes - 1}"
        )
    return records[:, layout.label_bytes :], labels


def _read_pickle(layout: Layout, file: Path) -> tuple[np.ndarray, np.ndarray]:
    content = _unpickle(file)
    pixels, labels = content.get(b"data"), content.get(layout.label_key)
    if not (
        isinstance(pixels, np.ndarray)
        and pixels.dtype == np.uint8
        and pixels.ndim == 2
        and pixels.shape[1] == IMAGE_BYTES
    ):
        raise UserError(f"{file}: its 'data' is not a uint8 array of rows of {IMAGE_BYTES} bytes")
    if not (
        isinstance(labels, list)
        and len(labels) == len(pixels) > 0
        and all(type(label) is int for label in labels)
    ):
        raise UserError(
            f"{file}: its '{layout.label_key.decode()}' is not a list of {len(pixels)} whole numbers, one for each picture"
        )
    for record, label in enumerate(labels):
        if not 0 <= label < layout.num_classes:
            raise UserError(
                f"{file} has label {label} in record {record}; labels are 0 to {layout.num_classes - 1}"
            )
    return pixels, np.array(labels)


def _read_names(layout: Layout, file: Path) -> tuple[str, ...]:
    if not file.is_file():
        return (
            CIFAR10_CLASSES
            if layout.source == "cifar10"
            else tuple(str(label) for label in range(layout.num_classes))
        )
    if layout.label_bytes:
        names = [
            line.strip() for line in file.read_text(errors="replace").splitlines() if line.strip()
        ]
    else:
        found = _unpickle(file).get(layout.names_key)
        names = (
            [bytes(name).decode(errors="replace") for name in found]
            if isinstance(found, list)
            else []
        )
    if len(names) != layout.num_classes:
        raise UserError(
            f"{file} has {len(names)} class names; {layout.source} has {layout.num_classes}"
        )
    return tuple(names)


def _unpickle(file: Path) -> dict[Any, Any]:
    with file.open("rb") as stream:
        try:
            content = _ArrayUnpickler(stream, encoding="bytes").load()
        except UserError as error:
            raise UserError(
                f"{file} is not a CIFAR pickle: {error}; nothing of it was run"
            ) from None
        except Exception as error:  # a damaged pickle can raise anything
            size = file.stat().st_size
            raise UserError(
                f"{file} is cut short or damaged: {error} (read up to offset {stream.tell()} of {size})"
            ) from error
    if not isinstance(content, dict):
        raise UserError(
            f"{file} is not a CIFAR pickle: it holds a {type(content).__name__}, not a dictionary"
        )
    return content


def _allowed() -> dict[tuple[str, str], Any]:
    """All that a pickle may name: how NumPy, old and new, rebuilds arrays, and plain containers."""
    from numpy._core.multiarray import _reconstruct
    from numpy._core.numeric import _frombuffer  # type: ignore[attr-defined]

    allowed: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }
    for core in ("numpy.core", "numpy._core"):
        allowed |= {
            (f"{core}.multiarray", "_reconstruct"): _reconstruct,
            (f"{core}.numeric", "_frombuffer"): _frombuffer,
        }
    for builtins in ("builtins", "__builtin__"):
        allowed |= {
            (builtins, kind.__name__): kind
            for kind in (list, tuple, dict, set, frozenset, bytes, bytearray)
        }
    return allowed | {
        ("_codecs", "encode"): _codecs.encode,
        ("collections", "OrderedDict"): OrderedDict,
    }


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _allowed()[module, name]
        except KeyError:
            raise UserError(f"it asks for {module}.{name}, which is refused") from None
