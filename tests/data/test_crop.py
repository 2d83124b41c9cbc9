"""Random crop and flip equal NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from augmented import drawn_by_numpy, to_pixels, train_batch
from paceline.data.augment.crop import mirrored
from paceline.data.draws import Draws
from paceline.experiment.experiment import Augmentation
from tiny import number


def crop_and_flip_by_numpy(image, pad, flip, row, column, mirror):
    height, width, _ = image.shape
    padded = np.zeros((height + 2 * pad, width + 2 * pad, image.shape[2]), np.uint8)
    padded[pad : pad + height, pad : pad + width] = image
    top, left = row % (2 * pad + 1), column % (2 * pad + 1)
    crop = padded[top : top + height, left : left + width]
    return crop[:, ::-1] if flip and mirror % 2 else crop


@pytest.mark.parametrize(("padding", "flip"), [(0, False), (0, True), (2, False), (4, True)])
def test_crop_and_flip_equal_numpy_pixel_for_pixel(padding, flip):
    for step, replica in [(0, 0), (3, 1)]:
        batch, raw, chosen = train_batch(Augmentation(padding=padding, flip=flip), step, replica)
        names = ("crop/row", "crop/column", "flip")
        numbers = [drawn_by_numpy(name, 5, step // 2, chosen) for name in names]
        wanted = [
            crop_and_flip_by_numpy(image, padding, flip, *own)
            for image, *own in zip(raw, *numbers, strict=True)
        ]
        np.testing.assert_array_equal(to_pixels(batch.images), np.stack(wanted))
        if padding or flip:
            assert (to_pixels(batch.images) != raw).any()


def test_alternating_flips_change_every_epoch_and_are_random_at_first():
    settings, examples = (
        Augmentation(flip=True, alternate_flip=True),
        tf.range(1000, dtype=tf.int64),
    )
    first, second, third = (
        mirrored(settings, Draws(7, number(epoch), examples)).numpy() for epoch in range(3)
    )
    assert np.all(first != second)
    assert np.array_equal(first, third)
    assert 400 < first.sum() < 600
