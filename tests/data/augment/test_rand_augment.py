"""RandAugment equals NumPy and, where Pillow has the change, Pillow."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from augmented import drawn_by_numpy
from paceline.data.augment.rand_augment import CHANGES, rand_augment
from paceline.data.draws import Draws
from paceline.experiment.experiment import Augmentation
from tiny import number


def photo(seed=0, height=24, width=30, channels=3):
    """Smooth gradients with noise: histograms with gaps, a bright and a dark side."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = 20 + 150 * x / width + 60 * y / height
    noise = random.integers(-15, 16, (height, width, channels))
    tint = np.linspace(0.6, 1.0, channels)
    return np.clip(base[..., None] * tint + noise, 0, 255).astype(np.uint8)


def moved_by_numpy(x, matrix, shift=(0, 0)):
    """matrix: output place from the middle (right, down) -> source place, in parts of 65,536."""
    height, width, _ = x.shape
    result = np.zeros_like(x)
    for row in range(height):
        for column in range(width):
            u, v = column - (width - 1) / 2, row - (height - 1) / 2
            (a, b), (c, d) = matrix
            right = (a * u + b * v) / 65536 + (width - 1) / 2 + shift[0]
            down = (c * u + d * v) / 65536 + (height - 1) / 2 + shift[1]
            from_column, from_row = int(np.floor(right + 0.5)), int(np.floor(down + 0.5))
            if 0 <= from_column < width and 0 <= from_row < height:
                result[row, column] = x[from_row, from_column]
    return result


@pytest.mark.parametrize("name", ["shear-x", "shear-y", "translate-x", "translate-y", "rotate"])
@pytest.mark.parametrize(("sign", "strength"), [(1, 0.9), (-1, 0.9), (1, 0.35), (1, 0.0)])
def test_each_geometric_change_equals_numpy_pixel_for_pixel(name, sign, strength):
    image, one, straight = photo(), 65536, [[65536, 0], [0, 65536]]
    slant = sign * round(0.3 * strength * one)
    height, width = (sign * round(150 / 331 * strength * side) for side in image.shape[:2])
    angle = np.radians(30 * strength)
    cosine, sine = round(np.cos(angle) * one), sign * round(np.sin(angle) * one)
    matrix, shift = {
        "shear-x": ([[one, slant], [0, one]], (0, 0)),
        "shear-y": ([[one, 0], [slant, one]], (0, 0)),
        "translate-x": (straight, (width, 0)),
        "translate-y": (straight, (0, height)),
        "rotate": ([[cosine, sine], [-sine, cosine]], (0, 0)),
    }[name]
    found = CHANGES[name](tf.constant(image), tf.constant(sign), strength).numpy()
    np.testing.assert_array_equal(found, moved_by_numpy(image, matrix, shift))
    assert (found != image).any() == (strength > 0)


@pytest.mark.parametrize(
    ("name", "by_pillow", "tolerance"),
    [
        ("auto-contrast", ImageOps.autocontrast, 1),
        ("equalize", ImageOps.equalize, 0),
        ("posterize", lambda image: ImageOps.posterize(image, 4), 0),
        ("solarize", lambda image: ImageOps.solarize(image, 26), 0),
        ("color", lambda image: ImageEnhance.Color(image).enhance(1.9), 1),
        ("contrast", lambda image: ImageEnhance.Contrast(image).enhance(1.9), 1),
        ("brightness", lambda image: ImageEnhance.Brightness(image).enhance(1.9), 1),
        ("sharpness", lambda image: ImageEnhance.Sharpness(image).enhance(1.9), 1),
    ],
)
def test_changes_of_colors_are_those_of_pillow(name, by_pillow, tolerance):
    """Pillow cuts fractions off where we round, so some differ by one."""
    image = photo(1)
    strength = 0.9 if name == "solarize" else 1.0
    found = CHANGES[name](tf.constant(image), tf.constant(1), strength).numpy().astype(int)
    wanted = np.asarray(by_pillow(Image.fromarray(image))).astype(int)
    assert np.abs(found - wanted).max() <= tolerance


@pytest.mark.slow
def test_rand_augment_draws_its_changes_by_name_epoch_and_index():
    images = np.stack([photo(seed, 12, 10) for seed in range(40)])
    examples = np.arange(100, 140)
    draws = Draws(7, number(3), tf.constant(examples))
    found = tf.function(lambda: rand_augment(Augmentation(rand_augment=2), images, draws))().numpy()
    names = list(CHANGES)
    for k, image in enumerate(images):
        for turn in range(2):
            change, sign = (
                drawn_by_numpy(f"rand-augment/{turn}{what}", 7, 3, examples)[k]
                for what in ("", "/sign")
            )
            image = CHANGES[names[change % 14]](tf.constant(image), 1 - 2 * (sign % 2), 0.9).numpy()
        np.testing.assert_array_equal(found[k], image)


@pytest.mark.parametrize("channels", [1, 3])
def test_rand_augment_takes_float_images_and_gray_ones(channels):
    images = np.stack([photo(seed, 9, 9, channels) for seed in range(30)])
    draws = Draws(1, number(0), tf.range(30, dtype=tf.int64))
    settings = Augmentation(rand_augment=1, rand_magnitude=5.0)
    exact = rand_augment(settings, tf.constant(images), draws).numpy()
    rounded = rand_augment(settings, tf.constant(images + np.float32(0.4)), draws).numpy()
    np.testing.assert_array_equal(exact, rounded)
    assert exact.dtype == np.uint8
