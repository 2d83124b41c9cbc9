"""CIFAR-10 and CIFAR-100 in their authors' files: the binary layout, and the Python pickles.

It finds the files, reads and checks them with NumPy, and builds a source that is held in memory.
It downloads nothing (`fetch` does), and runs nothing that a pickle asks for.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from paceline.data.digests import arrays_digest
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats.source_folder import read_bytes, source_folder, visible_entries
from paceline.storage.files import is_file

if TYPE_CHECKING:
    from paceline.data.source import Source

Examples = tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]
"""Images and labels."""
IMAGE_BYTES = 3 * 32 * 32
NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "NEWTRUE", "NEWFALSE")
"""Instructions of a pickle that make a number."""
CLASSES = {
    "cifar10": "airplane automobile bird cat deer dog frog horse ship truck",
    "cifar100": """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
        butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
        crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
        keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
        mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
        plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
        television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """,
}


@dataclass(frozen=True)
class Layout:
    """Which files have what. A binary record is its labels, one byte each, and then the pixels.
    The last label counts. In the Python layout, `label_bytes` is 0, the labels have a key."""

    source: str
    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int = 0
    label_key: bytes = b""

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(CLASSES[self.source].split())

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test)


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_BINARY_BATCHES = tuple(f"{name}.bin" for name in _BATCHES)
LAYOUTS = (
    Layout("cifar10", "cifar-10-batches-bin", _BINARY_BATCHES, "test_batch.bin", 1),
    Layout("cifar10", "cifar-10-batches-py", _BATCHES, "test_batch", label_key=b"labels"),
    Layout("cifar100", "cifar-100-binary", ("train.bin",), "test.bin", 2),
    Layout("cifar100", "cifar-100-python", ("train",), "test", label_key=b"fine_labels"),
)


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
    check_complete(layout, place, f"fetch {layout.source} again into a new folder")
    parts = [read_file(layout, place / file) for file in layout.files]
    images, labels = zip(*parts[:-1], strict=True)
    return (np.concatenate(images), np.concatenate(labels)), parts[-1]


def _build(source: str, data: Data) -> Source:
    from paceline.data.source import Source, in_memory

    advice = f"run `paceline data fetch {source} {data.dir or 'DIR'}`"
    given, pattern = Path(data.dir), ""
    if set(given.name) & set("*?["):
        given, pattern = given.parent, given.name
    folder = source_folder(str(given) if data.dir else "", advice)
    found = find_layout(source, folder)
    if found is None:
        usual = " or ".join(layout.folder for layout in LAYOUTS if layout.source == source)
        raise UserError(f"{folder} has no {source} files, nor {usual}; {advice}")
    found = _chosen(*found, pattern, data.test), found[1]
    splits = read_splits(*found)
    train, test = (in_memory(*examples) for examples in splits)
    digest = arrays_digest(*splits[0], *splits[1])
    return Source(train, test, found[0].classes, (32, 32, 3), digest)


def _chosen(layout: Layout, place: Path, pattern: str, test: str) -> Layout:
    """Return the layout with the training files of a pattern, and with a test file of choice."""
    test = str(Path(test).expanduser().absolute() if test else place.absolute() / layout.test)
    names = sorted(entry.name for entry in visible_entries(place)) if pattern else layout.train
    train = [name for name in names if not pattern or fnmatch(name, pattern)]
    train = [n for n in train if n != layout.test and str(place.absolute() / n) != test]
    if not train:
        raise UserError(f"no training file of {place} is named like {pattern!r}; change --data.dir")
    return replace(layout, train=tuple(train), test=test)


def read_file(layout: Layout, file: Path) -> Examples:
    """Return the images and labels of one file, in either layout. Raise UserError if it is bad."""
    pixels, labels = (_read_binary if layout.label_bytes else _read_pickle)(layout, file)
    last = len(layout.classes) - 1
    for record, label in enumerate(labels.tolist()):
        if not 0 <= label <= last:
            allowed = f"labels are 0 to {last}"
            raise UserError(f"{file} has label {label} in record {record}; {allowed}")
    images = np.stack(np.split(pixels, 3, axis=1), axis=-1).reshape(-1, 32, 32, 3)
    return images, labels.astype(np.int32)


def _read_binary(layout: Layout, file: Path) -> Examples:
    content = np.frombuffer(read_bytes(file), np.uint8)
    record = layout.label_bytes + IMAGE_BYTES
    whole, rest = divmod(content.size, record)
    if rest or not whole:
        found = f"its record at offset {whole * record} has {rest} of {record} bytes"
        raise UserError(
            f"{file} is cut short: {found} ({content.size} bytes in all); fetch it again"
        )
    records = content.reshape(whole, record)
    return records[:, layout.label_bytes :], records[:, layout.label_bytes - 1]


def _read_pickle(layout: Layout, file: Path) -> Examples:
    """Read a pickle as a list of instructions, of which only texts and numbers are used: nothing
    that it names is run or built."""
    content, key, pixels, number = read_bytes(file), b"", b"", 1
    kinds, labels = set(), []
    try:
        for instruction, value, _ in pickletools.genops(content):
            if isinstance(value, str | bytes):
                text = value.encode("latin-1", "replace") if isinstance(value, str) else value
                if text in (b"data", layout.label_key):
                    key = text
                elif key == layout.label_key:
                    key = b""
                elif key == b"data":
                    kinds.add(text[:3])
                    # The longest text is the content of the array. The number before it tells
                    # whether columns come first.
                    pixels = text if len(text) > len(pixels) and not number else pixels
            elif instruction.name in NUMBERS:
                number = instruction.name == "NEWTRUE" if value is None else value
                labels += [number] if key == layout.label_key else []
    except Exception as error:  # damage can raise anything
        reason = f"it is cut short or damaged: {str(error)[:100]}"
        raise UserError(f"{file} is not a CIFAR pickle: {reason}") from None
    if b"u1" not in kinds or not pixels or len(pixels) % IMAGE_BYTES:
        raise UserError(f"{file}: its 'data' is not a uint8 array of rows of {IMAGE_BYTES} bytes")
    images = np.frombuffer(pixels, np.uint8).reshape(-1, IMAGE_BYTES)
    if len(labels) != len(images):
        found = f"{len(labels)} whole numbers for {len(images)} images"
        raise UserError(f"{file}: its '{layout.label_key.decode()}' has {found}")
    return images, np.array(labels, object)  # a label may have any number of digits


build_cifar10, build_cifar100 = partial(_build, "cifar10"), partial(_build, "cifar100")
