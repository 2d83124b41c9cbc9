"""Cutout and random erasing equal NumPy."""

import numpy as np
import pytest

from augmented import PLAIN, drawn_by_numpy, train_batch
from paceline.experiment.experiment import Augmentation


@pytest.mark.parametrize("side", [1, 4, 5])
def test_cutout_blanks_one_square_around_a_random_pixel(side):
    batch, _, chosen = train_batch(Augmentation(cutout=side))
    plain, _, _ = train_batch(PLAIN)
    rows, columns = (drawn_by_numpy(f"cutout/{axis}", 5, 0, chosen) for axis in ("row", "column"))
    for image, without, row, column in zip(
        batch.images.numpy(), plain.images.numpy(), rows, columns, strict=True
    ):
        top, left = row % 8 - side // 2, column % 6 - side // 2
        blank = np.zeros((8, 6), bool)
        blank[max(0, top) : top + side, max(0, left) : left + side] = True
        assert 1 <= blank.sum() <= side**2
        np.testing.assert_array_equal(image, np.where(blank[..., None], 0, without))


def test_cutout_has_its_whole_area_where_it_does_not_stick_out():
    batch, _, _ = train_batch(Augmentation(cutout=4), shape=(40, 40, 3), seed=1)
    areas = (batch.images.numpy() == 0).all(-1).sum((1, 2))
    assert areas.max() == 16
    assert areas.min() >= 4


def test_random_erasing_blanks_rectangles_with_its_probability_as_numpy_does():
    batch, _, chosen = train_batch(Augmentation(random_erasing=0.6), shape=(20, 30, 3))
    plain, _, _ = train_batch(PLAIN, shape=(20, 30, 3))
    numbers = {
        part: drawn_by_numpy(f"random-erasing/{part}", 5, 0, chosen)
        for part in ("chance", "share", "aspect", "row", "column")
    }
    blanked = 0
    for k, (image, without) in enumerate(
        zip(batch.images.numpy(), plain.images.numpy(), strict=True)
    ):
        own = {part: values[k] for part, values in numbers.items()}
        blank = np.zeros((20, 30, 1), bool)
        if own["chance"] / 2**31 < 0.6:
            slant = own["aspect"] / 2**31
            stretch = 1 + abs(2 * slant - 1) * (10 / 3 - 1)
            aspect = stretch if slant < 0.5 else 1 / stretch
            area = (0.02 + own["share"] / 2**31 * 0.31) * 600
            tall = int(np.clip(np.rint((area / aspect) ** 0.5), 1, 20))
            wide = int(np.clip(np.rint((area * aspect) ** 0.5), 1, 30))
            top, left = own["row"] % (21 - tall), own["column"] % (31 - wide)
            blank[top : top + tall, left : left + wide] = True
            blanked += 1
        np.testing.assert_array_equal(image, np.where(blank, 0, without))
    assert 2 <= blanked <= 7
