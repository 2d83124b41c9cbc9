"""Saturation and hue equal NumPy and Python's colorsys."""

import colorsys

import numpy as np

from augmented import drawn_by_numpy, train_batch
from paceline.experiment.experiment import Augmentation


def amounts_by_numpy(name, most, chosen):
    return most * (drawn_by_numpy(name, 5, 0, chosen) / 2**30 - 1)


def test_saturation_moves_colors_from_or_to_gray_as_numpy_does():
    batch, raw, chosen = train_batch(Augmentation(saturation=0.8))
    factors = 1 + amounts_by_numpy("saturation", 0.8, chosen)
    assert factors.max() - factors.min() > 0.5
    x = raw.astype(float)
    gray = (x @ [0.299, 0.587, 0.114])[..., None]
    wanted = np.clip(gray + factors[:, None, None, None] * (x - gray), 0, 255)
    np.testing.assert_allclose((batch.images.numpy() + 1) * 128, wanted, atol=2e-3)


def test_hue_turns_the_color_circle_as_colorsys_does():
    batch, raw, chosen = train_batch(Augmentation(hue=0.3))
    turns = amounts_by_numpy("hue", 0.3, chosen)

    def turned(pixel, turn):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255))
        return np.array(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)) * 255

    wanted = [
        [[turned(pixel, turn) for pixel in row] for row in image]
        for image, turn in zip(raw, turns, strict=True)
    ]
    np.testing.assert_allclose((batch.images.numpy() + 1) * 128, wanted, atol=5e-3)
