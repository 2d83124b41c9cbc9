"""Data that lie in NumPy arrays: given through the Python API, carried to the workers as a folder of .npy files.

It owns that folder's layout, its checks, and `in_memory`, the split of any source that holds its pictures in one tensor.
Saving needs no TensorFlow: it happens on the driver's side.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config.experiment import Data
from paceline.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

    from paceline.data.source import Source, Split

Examples = tuple[Any, Any]
"""Pictures and labels: arrays, or what NumPy makes arrays of."""

FILES = (
    "train_images.npy",
    "train_labels.npy",
    "test_images.npy",
    "test_labels.npy",
    "classes.json",
)
TEST_SHARE = 10
"""Without a test split, one training example in this many becomes the test split."""


def save_arrays(
    folder: str | Path,
    train: Examples,
    test: Examples | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Write the arrays as a folder for `build_arrays`, whole or not at all; an earlier folder of arrays is replaced."""
    target = Path(folder).expanduser()
    splits = {"train": _check_split(train, "train")} | (
        {"test": _check_split(test, "test")} if test is not None else {}
    )
    _check_together(splits, classes)
    if target.exists():
        _check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
        new, old = Path(temporary, "new"), Path(temporary, "old")
        new.mkdir()
        for name, (images, labels) in splits.items():
            np.save(new / f"{name}_images.npy", images, allow_pickle=False)
            np.save(new / f"{name}_labels.npy", labels, allow_pickle=False)
        if classes is not None:
            (new / "classes.json").write_text(json.dumps(list(classes)))
        if target.exists():
            os.rename(target, old)
        os.rename(new, target)


def save_arrays_by_digest(
    root: Path, train: Examples, test: Examples | None = None, classes: Sequence[str] | None = None
) -> Path:
    """Save the arrays under `root` in a folder named by what they hold, once: the same arrays make the same experiment."""
    digest = hashlib.sha256(json.dumps(list(classes) if classes is not None else None).encode())
    for array in [*train, *(test or ())]:
        array = np.ascontiguousarray(array)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    folder = root / f"arrays-{digest.hexdigest()[:12]}"
    if not folder.exists():
        save_arrays(folder, train, test, classes)
    return folder


def build_arrays(data: Data) -> Source:
    """The source of a folder written by `save_arrays`. Without test arrays, a tenth of the training examples is held out."""
    from paceline.data import hold_out
    from paceline.data.source import Source

    folder = _folder(data)
    splits = {"train": _load_split(folder, "train")}
    if (folder / "test_images.npy").exists() or (folder / "test_labels.npy").exists():
        splits["test"] = _load_split(folder, "test")
    names = _load_classes(folder)
    classes = _check_together(splits, names)
    _, *shape = splits["train"][0].shape
    train = in_memory(*splits["train"])
    test = in_memory(*splits["test"]) if "test" in splits else None
    if test is None:
        train, test = hold_out(
            Source(train, train, classes, None), max(1, train.size // TEST_SHARE)
        )
    assert test is not None
    return Source(train, test, classes, (shape[0], shape[1], shape[2]))


def in_memory(images: np.ndarray, labels: np.ndarray) -> Split:
    """A split that holds its pictures, uint8 [n, height, width, channels], and labels as tensors."""
    import tensorflow as tf

    from paceline.data.source import Split

    all_images, all_labels = tf.constant(images, tf.uint8), tf.constant(labels, tf.int32)

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(all_images, indices), tf.gather(all_labels, indices)

    return Split(len(images), read)


def _check_split(examples: Examples, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pictures as uint8 [n, height, width, channels] and labels as int32 [n], or a UserError."""
    if not isinstance(examples, (tuple, list)) or len(examples) != 2:
        raise UserError(
            f"the {name} data must be a pair (images, labels), not a {type(examples).__name__}"
        )
    images, labels = np.asarray(examples[0]), np.asarray(examples[1])
    if images.dtype != np.uint8:
        raise UserError(
            f"the {name} images are {images.dtype}; give uint8 from 0 to 255, Paceline scales them itself"
        )
    if images.ndim not in (3, 4):
        raise UserError(
            f"the {name} images have shape {images.shape}; it must be [n, height, width] or [n, height, width, channels]"
        )
    if 0 in images.shape:
        raise UserError(
            f"the {name} images have shape {images.shape}; there must be one picture or more"
        )
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise UserError(
            f"the {name} labels are {labels.dtype} of shape {labels.shape}; give integers of shape ({len(images)},), "
            "such as labels.reshape(-1)"
        )
    if len(labels) != len(images):
        raise UserError(
            f"there are {len(images)} {name} images and {len(labels)} {name} labels; give one label for each image"
        )
    if labels.min() < 0 or labels.max() >= 2**31:
        bad = int(labels.min() if labels.min() < 0 else labels.max())
        raise UserError(f"the {name} labels have a {bad}; labels count the classes from 0")
    return images[..., None] if images.ndim == 3 else images, labels.astype(np.int32)


def _check_together(
    splits: dict[str, tuple[np.ndarray, np.ndarray]], names: Sequence[str] | None
) -> tuple[str, ...]:
    """Class names, when the splits and the names agree with each other."""
    shapes = {name: images.shape[1:] for name, (images, _) in splits.items()}
    if len(set(shapes.values())) > 1:
        raise UserError(
            f"the train images are of shape {shapes['train']} and the test images of {shapes['test']}; make them alike"
        )
    if names is not None and (
        not all(isinstance(name, str) for name in names) or isinstance(names, str)
    ):
        raise UserError(f"classes must be a list of one name per class, not {names!r}")
    highest = {name: int(labels.max()) for name, (_, labels) in splits.items()}
    for split, label in highest.items():
        if names is not None and label >= len(names):
            raise UserError(
                f"the {split} labels go up to {label}, but there are {len(names)} class names; labels count from 0"
            )
    if names is not None:
        return tuple(names)
    return tuple(str(label) for label in range(max(highest.values()) + 1))


def _check_replaceable(folder: Path) -> None:
    """Only a folder of arrays may be replaced: anything else in it would be lost."""
    if not folder.is_dir() or (
        foreign := sorted({entry.name for entry in folder.iterdir()} - set(FILES))
    ):
        found = f"holds {foreign[0]!r}" if folder.is_dir() else "is a file"
        raise UserError(
            f"{folder} {found}, so it is not a folder of arrays; give one that is new or empty"
        )


def _folder(data: Data) -> Path:
    if not data.dir:
        raise UserError(
            "the source arrays needs its folder: give --data.dir DIR with train_images.npy and train_labels.npy"
        )
    folder = Path(data.dir).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}; give --data.dir DIR with train_images.npy and train_labels.npy"
        )
    return folder


def _load_split(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    loaded = []
    for file in (folder / f"{name}_images.npy", folder / f"{name}_labels.npy"):
        try:
            loaded.append(np.load(file, allow_pickle=False))
        except FileNotFoundError:
            raise UserError(
                f"there is no {file.name} in {folder}; save the arrays again with save_arrays"
            ) from None
        except (ValueError, EOFError, OSError) as error:
            raise UserError(
                f"{file} is not a whole .npy file of numbers: {str(error).splitlines()[0]}"
            ) from error
    return _check_split((loaded[0], loaded[1]), name)


def _load_classes(folder: Path) -> list[str] | None:
    file = folder / "classes.json"
    if not file.exists():
        return None
    try:
        names = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}") from error
    if not isinstance(names, list):
        raise UserError(f"{file} must hold a list of class names")
    return names
