"""What the recipe my-images is for a folder of small images, such as digits of 28x28 pixels."""

from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.model import Model
from paceline.experiment.recipes.table import get_recipe
from paceline.formats.detect import detect
from paceline.formats.image_list import walk_images
from paceline.storage.locations import is_remote

LARGEST = 64
"""Sides of small images, at most."""
TRIED = 8
"""Images of a folder that are looked at."""


def recipe_for(folder: str) -> Experiment:
    """Return my-images. For small images, it has a network like CIFAR's, and gray ones are not
    mirrored: digits and letters would become others."""
    experiment, sides, gray, kind = get_recipe("my-images"), list[int](), False, ""
    if folder and not is_remote(folder):
        with suppress(UserError, OSError, ValueError):  # training reports them
            kind = detect(folder)
            sides, gray = _look(Path(folder).expanduser(), kind)
    if not sides or max(sides) > LARGEST:
        return experiment
    fixed = kind == "arrays"
    augment = replace(experiment.augment, flip=not gray)
    augment = replace(augment, **({"padding": 4} if fixed else {"crop_area_min": 0.6}))
    data = replace(experiment.data, image_size=0 if fixed else max(sides))
    return replace(experiment, data=data, augment=augment, model=Model(depth=20))


def _look(folder: Path, kind: str) -> tuple[list[int], bool]:
    """Return the longer sides of some images, and whether all are gray."""
    from PIL import Image

    if kind == "arrays":
        import numpy as np

        shape = np.load(folder / "train_images.npy", mmap_mode="r", allow_pickle=False).shape
        return [max(shape[1:3])], len(shape) == 3 or shape[3] == 1
    if kind != "pictures":
        return [], False
    sides, modes = [], set()
    for file in islice(walk_images(folder), TRIED):
        with Image.open(file) as image:
            sides.append(max(image.size))
            modes.add(image.mode[:1])
    return sides, modes <= {"L", "1", "I"}
