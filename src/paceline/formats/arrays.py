"""Data in NumPy arrays: given through the Python API, stored for the workers as .npy files.

It owns the layout of that folder and its checks. Saving runs on the driver and needs no TensorFlow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from paceline.data.digests import arrays_digest, digest_of
from paceline.errors import UserError, first_line
from paceline.experiment.experiment import Data
from paceline.formats.source_folder import source_folder
from paceline.storage.array_files import read_npy
from paceline.storage.files import explained, is_file, read_text, replacing_path

if TYPE_CHECKING:
    from paceline.data.source import Source

Examples = tuple[npt.ArrayLike, npt.ArrayLike]
"""Images and labels: arrays, or what NumPy makes arrays of."""
Array = npt.NDArray[Any]
Splits = dict[str, tuple[Array, Array]]

TEST_SHARE = 10
"""Without a test split, one training example in ten becomes the test split."""


def save_arrays(
    folder: str | Path,
    train: Examples,
    test: Examples | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Write the arrays as a folder for `build_arrays`, whole or not at all."""
    target = Path(folder).expanduser()
    train, test, classes = _with_numbers(train, test, classes)
    splits = {"train": check_split(train, "train")}
    if test is not None:
        splits["test"] = check_split(test, "test")
    check_together(splits, classes)
    with replacing_path(target) as new:
        new.mkdir()
        for name, (images, labels) in splits.items():
            np.save(new / f"{name}_images.npy", images, allow_pickle=False)
            np.save(new / f"{name}_labels.npy", labels, allow_pickle=False)
        if classes is not None:
            (new / "classes.json").write_text(json.dumps(list(classes)))


def save_arrays_by_digest(
    root: Path, train: Examples, test: Examples | None = None, classes: Sequence[str] | None = None
) -> Path:
    """Save the arrays once, in a folder of `root` that is named by their content; return it. The
    same arrays give the same experiment."""
    names = json.dumps(classes if classes is None else list(classes))
    given = map(np.asarray, (*train, *(test or ())))
    arrays = (np.char.encode(a.astype(str)) if a.dtype.kind in "OU" else a for a in given)
    digest = digest_of([names.encode(), arrays_digest(*arrays).encode()])
    folder = root / f"arrays-{digest[:12]}"
    if not folder.exists():
        save_arrays(folder, train, test, classes)
    return folder


def build_arrays(data: Data) -> Source:
    """Return the source of a folder written by `save_arrays`. Without test arrays, a tenth of the
    training examples is held out."""
    from paceline.data.source import Source, hold_out, in_memory

    folder = source_folder(data.dir, "it must have train_images.npy and train_labels.npy")
    splits, classes = load_arrays(folder)
    _, height, width, channels = splits["train"][0].shape
    train, *tests = (in_memory(*examples) for examples in splits.values())
    digest = arrays_digest(*(array for examples in splits.values() for array in examples))
    source = Source(train, train, classes, (height, width, channels), digest)
    if tests:
        return replace(source, test=tests[0])
    train, test = hold_out(source, max(1, train.size // TEST_SHARE))
    return replace(source, train=train, test=test or train)


def load_arrays(folder: Path) -> tuple[Splits, tuple[str, ...]]:
    """Return the arrays of each split and the class names. Raise UserError if a file is bad."""
    splits = {"train": _load_split(folder, "train")}
    if any(is_file(folder / f"test_{kind}.npy") for kind in ("images", "labels")):
        splits["test"] = _load_split(folder, "test")
    file = folder / "classes.json"
    try:
        names = json.loads(read_text(file) or "null")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}") from error
    return splits, check_together(splits, names)


def check_split(examples: Examples, name: str) -> tuple[Array, Array]:
    """Return images as uint8 [n, height, width, channels] and labels as int32 [n]."""
    if not isinstance(examples, (tuple, list)) or len(examples) != 2:
        found = type(examples).__name__
        raise UserError(f"the {name} data must be a pair (images, labels), not a {found}")
    images, labels = np.asarray(examples[0]), _whole_numbers(np.asarray(examples[1]))
    if images.dtype != np.uint8:
        images = to_bytes(images, name)
    if images.ndim not in (3, 4) or 0 in images.shape:
        needed = "[n, height, width] or [n, height, width, channels], with one image or more"
        raise UserError(f"the {name} images have shape {images.shape}; it must be {needed}")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        needed = f"whole numbers or names of shape ({len(images)},), or one-hot rows"
        found = f"{labels.dtype} of shape {labels.shape}"
        raise UserError(f"the {name} labels are {found}; give {needed}")
    if len(labels) != len(images):
        found = f"{len(images)} {name} images and {len(labels)} {name} labels"
        raise UserError(f"there are {found}; give one label for each image")
    if labels.min() < 0 or labels.max() >= 2**31:
        bad = int(labels.min() if labels.min() < 0 else labels.max())
        raise UserError(f"the {name} labels have a {bad}; labels count the classes from 0")
    return images[..., None] if images.ndim == 3 else images, labels.astype(np.int32)


def _with_numbers(
    train: Examples, test: Examples | None, classes: Sequence[str] | None
) -> tuple[Examples, Examples | None, Sequence[str] | None]:
    """Return the examples with numbers in place of names as labels, and the class names."""
    texts = [[*map(str, np.asarray(each[1]))] if _has_names(each) else [] for each in (train, test)]
    if not texts[0]:
        return train, test, classes
    names = sorted(set(texts[0])) if classes is None else list(classes)
    numbers = {name: number for number, name in enumerate(names)}
    if unknown := sorted({*texts[0], *texts[1]} - set(numbers)):
        known = "a class name" if classes is not None else "a label of the train data"
        raise UserError(f"the labels contain {unknown[0]!r}, which is not {known}")
    found = [np.array([numbers[label] for label in each], np.int32) for each in texts]
    return (train[0], found[0]), test and (test[0], found[1]), names


def _has_names(examples: Any) -> TypeGuard[Examples]:
    is_pair = isinstance(examples, tuple | list) and len(examples) == 2
    return is_pair and np.asarray(examples[1]).dtype.kind in "OU"


def _whole_numbers(labels: Array) -> Array:
    """Return labels [n] of one-hot rows, of one column, and of floats without fractions."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind not in "biuf":
        return labels
    if labels.ndim == 2 and np.all((labels == 0) | (labels == 1)) and np.all(labels.sum(1) == 1):
        labels = labels.argmax(1)
    whole = labels.dtype.kind == "f" and np.all(np.mod(labels, 1) == 0)
    return labels.astype(np.int64) if whole else labels


def to_bytes(images: Array, name: str) -> npt.NDArray[np.uint8]:
    """Return numbers of 0 to 1, or whole numbers of 0 to 255, as uint8."""
    if images.dtype.kind in "iuf" and images.size:
        lowest, highest = images.min(), images.max()
        if lowest >= 0 and highest <= 1 and images.dtype.kind == "f":
            whole: npt.NDArray[np.uint8] = np.rint(images * 255).astype(np.uint8)
            return whole
        if lowest >= 0 and highest <= 255 and not np.any(np.mod(images, 1)):
            return images.astype(np.uint8)
        given = f"{images.dtype} from {lowest} to {highest}"
    else:
        given = f"{images.dtype} of shape {images.shape}"
    needed = "uint8 from 0 to 255, or floats from 0 to 1; Paceline scales them itself"
    raise UserError(f"the {name} images are {given}; give {needed}")


def check_together(splits: Splits, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the class names. Raise UserError if the splits and the names do not agree."""
    shapes = {name: images.shape[1:] for name, (images, _) in splits.items()}
    if len(set(shapes.values())) > 1:
        found = f"the train images are {shapes['train']} and the test images {shapes['test']}"
        raise UserError(f"{found}; make their shapes alike")
    highest = {name: int(labels.max()) for name, (_, labels) in splits.items()}
    if names is None:
        return tuple(str(label) for label in range(max(highest.values()) + 1))
    is_list = isinstance(names, Iterable) and not isinstance(names, str | dict)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise UserError(f"classes must be a list of one name per class, not {str(names)[:200]!r}")
    for split, label in highest.items():
        if label >= len(names):
            found = f"the {split} labels go up to {label}, but there are {len(names)} class names"
            raise UserError(f"{found}; labels count from 0")
    return tuple(names)


def _load_split(folder: Path, name: str) -> tuple[Array, Array]:
    loaded = []
    for file in (folder / f"{name}_images.npy", folder / f"{name}_labels.npy"):
        if not is_file(file):
            advice = "restore it, or give the arrays again"
            raise UserError(f"there is no {file.name} in {folder}; {advice}")
        try:
            with explained("read", file):
                loaded.append(read_npy(file))
        except ValueError as error:
            text = f"{file} is not a whole .npy file of numbers: {first_line(error)}"
            raise UserError(text) from error
    return check_split((loaded[0], loaded[1]), name)
