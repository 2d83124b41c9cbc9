"""Which kind of data set a folder contains, by the names of its files alone."""

from pathlib import Path

from paceline.errors import UserError
from paceline.experiment.data import Data
from paceline.formats.cifar import find_layout
from paceline.formats.image_list import contains_images
from paceline.formats.source_folder import source_folder, visible_entries
from paceline.formats.tfrecord.shards import find_packed, find_shards
from paceline.storage.files import is_file, is_folder
from paceline.storage.locations import is_remote

PACKED = {
    ".zip": "unpack it: python -m zipfile -e FILE DIR",
    ".tar.gz": "unpack it: tar -xzf FILE",
    ".tgz": "unpack it: tar -xzf FILE",
    ".gz": "unpack it: gunzip FILE",
    ".arrow": "in Python: datasets.load_from_disk(DIR)['train'].to_parquet('train.parquet')",
    ".npz": "in Python: d = numpy.load(FILE); "
    "paceline.train(RECIPE, data=(d['x_train'], d['y_train']))",
    "-ubyte": "in Python: paceline.train(RECIPE, data=(images, labels)) with images = "
    "numpy.fromfile(FILE, 'u1', offset=16).reshape(-1, 28, 28), and labels with offset=8",
}
"""Endings of files that are not read, and what can be done instead."""


def detect(folder: str | Path, expected: str = "auto") -> str:
    """Return the name of the source that reads `folder`. If nothing of a known kind is there, it is
    the `expected` one, which reports what it needs."""
    path = Path(folder).expanduser()
    if not str(folder) or not is_folder(path):
        _refuse_packed(path, [path.name])
        if expected != "auto":
            return expected
        given = f"there is no folder {path}" if str(folder) else "the data has no folder"
        raise UserError(f"{given}; pass the folder of the data, in training with --data.dir DIR")
    found = [name for name in ("cifar10", "cifar100") if find_layout(name, path)]
    found += ["arrays"] if is_file(path / "train_images.npy") else []
    found += ["tfrecord"] if find_shards(str(path)) else []
    if (not found or expected == "pictures") and contains_images(path):
        found.append("pictures")
    if not found or expected in ("webdataset", "parquet"):
        endings = {"webdataset": ".tar", "parquet": ".parquet"}
        found += [name for name, ending in endings.items() if find_packed(str(path), ending)]
    if expected in found or (not found and expected != "auto"):
        return expected
    if not found:
        _refuse_packed(path, sorted(entry.name for entry in visible_entries(path)))
        raise UserError(
            f"{path} has no data set of a known kind: cifar10, cifar100 (binary or Python files), "
            "arrays (.npy), pictures (train/<class>/*.jpg, or a .csv file with labels), tfrecord "
            "(train-00000-of-00008 ...), webdataset (train-0000.tar ...), parquet "
            "(train-00000-of-00008.parquet ...)"
        )
    if len(found) > 1:
        several = ", ".join(found)
        raise UserError(f"{path} has several data sets: {several}; give the folder of one of them")
    return found[0]


def require(data: Data, on: str, run_dir: str) -> None:
    """Raise UserError if a new run has no data, seconds before a worker would."""
    elsewhere = data.build or is_remote(data.dir) or on != "local" or is_remote(run_dir)
    if elsewhere or is_file(Path(run_dir, "config.json")):  # a finished run needs none
        return
    if not data.dir:
        fetch = f"run `paceline data fetch {data.source} DIR`"
        known = data.source in ("cifar10", "cifar100")
        source_folder("", fetch if known else "docs/data.md describes what it may contain")
    if not data.source.startswith("cifar") and not is_folder(Path(data.dir).expanduser()):
        detect(data.dir)  # for CIFAR, it may be a pattern


def _refuse_packed(folder: Path, names: list[str]) -> None:
    for name in names:
        for ending, advice in PACKED.items():
            if name.endswith(ending):
                raise UserError(f"{folder} has {name}, which cannot be read in place; {advice}")
