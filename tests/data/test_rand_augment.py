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


def gray_by_numpy(x):
    return (x @ np.array([19595, 38470, 7471]) + 2**15)[..., None] // 2**16


def smooth_by_numpy(x):
    smooth = x.copy()
    for row in range(1, x.shape[0] - 1):
        for column in range(1, x.shape[1] - 1):
            window = x[row - 1 : row + 2, column - 1 : column + 2].reshape(9, -1).sum(0)
            smooth[row, column] = np.floor((window + 4 * x[row, column]) / 13 + 0.5)
    return smooth


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


def equalized_by_numpy(x):
    result = x.copy()
    for channel in range(x.shape[2]):
        values = x[..., channel].ravel()
        counts = np.bincount(values, minlength=256)
        step = (values.size - counts[values.max()]) // 255
        if step:
            below = np.concatenate([[0], np.cumsum(counts)[:-1]])
            result[..., channel] = np.minimum((below + step // 2) // step, 255)[x[..., channel]]
    return result


def blended_by_numpy(x, other, sign, strength):
    factor = 65536 + sign * round(0.9 * strength * 65536)
    exact = (other * (65536 - factor) + x * factor) / 65536
    return np.clip(np.floor(exact + 0.5), 0, 255)


def changed_by_numpy(name, image, sign, strength):
    x, one = image.astype(np.int64), 65536
    slant = sign * round(0.3 * strength * one)
    height, width, _ = x.shape
    far = 150 / 331 * strength
    cosine, sine = (
        round(function(np.radians(30 * strength)) * one) for function in (np.cos, np.sin)
    )
    gray = gray_by_numpy(x)
    least, most = x.min((0, 1)), x.max((0, 1))
    straight = [[one, 0], [0, one]]
    return {
        "identity": lambda: x,
        "auto-contrast": lambda: (x - least) * 255 // (most - least),
        "equalize": lambda: equalized_by_numpy(x),
        "posterize": lambda: x // 2 ** round(4 * strength) * 2 ** round(4 * strength),
        "solarize": lambda: np.where(x < 256 - round(256 * strength), x, 255 - x),
        "color": lambda: blended_by_numpy(x, gray, sign, strength),
        "contrast": lambda: blended_by_numpy(x, np.floor(gray.mean() + 0.5), sign, strength),
        "brightness": lambda: blended_by_numpy(x, 0, sign, strength),
        "sharpness": lambda: blended_by_numpy(x, smooth_by_numpy(x), sign, strength),
        "shear-x": lambda: moved_by_numpy(x, [[one, slant], [0, one]]),
        "shear-y": lambda: moved_by_numpy(x, [[one, 0], [slant, one]]),
        "translate-x": lambda: moved_by_numpy(x, straight, (sign * round(far * width), 0)),
        "translate-y": lambda: moved_by_numpy(x, straight, (0, sign * round(far * height))),
        "rotate": lambda: moved_by_numpy(x, [[cosine, sign * sine], [-sign * sine, cosine]]),
    }[name]().astype(np.uint8)


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_of_rand_augment_equals_numpy_pixel_for_pixel(name):
    image = photo()
    seen = []
    for sign, strength in [(1, 0.9), (-1, 0.9), (1, 0.35), (1, 0.0)]:
        found = CHANGES[name](tf.constant(image), tf.constant(sign), strength).numpy()
        np.testing.assert_array_equal(found, changed_by_numpy(name, image, sign, strength))
        seen.append((found != image).any())
    without_strength = ("auto-contrast", "equalize")
    assert seen[0] == (name != "identity")
    assert seen[3] == (name in without_strength)


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
            image = changed_by_numpy(names[change % 14], image, 1 - 2 * (sign % 2), 0.9)
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
