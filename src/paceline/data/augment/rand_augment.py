"""RandAugment (Cubuk et al. 2019): a number of random changes to each training image.

All of it is arithmetic of whole numbers on 8-bit images, so it gives the same bits on every machine
and in any order. `docs/training-options.md` lists the changes. A geometric change takes the nearest
pixel; pixels from outside the image are black.
"""

import math
from collections.abc import Callable
from functools import partial

import tensorflow as tf

from paceline.data.draws import Draws
from paceline.experiment.experiment import Augmentation

ONE = 2**16
"""Factors are whole numbers, in parts of this."""
STRONGEST = 10.0
"""Largest magnitude."""
_PARALLEL = 32  # images in work at a time, by as many cores as there are

Change = Callable[[tf.Tensor, tf.Tensor, float], tf.Tensor]
"""(image uint8 [h, w, c], sign 1 or -1 as int32, strength from 0 to 1) -> image"""


def rand_augment(settings: Augmentation, images: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Return images uint8 [n, h, w, c], each after `rand_augment` random changes."""
    count, strength = settings.rand_augment, settings.rand_magnitude / STRONGEST
    if images.dtype != tf.uint8:
        images = tf.saturate_cast(tf.round(images), tf.uint8)
    names = [f"rand-augment/{k}" for k in range(count)]
    chosen = tf.cast(draws.several(names) % len(CHANGES), tf.int32)
    signs = 1 - 2 * tf.cast(draws.several([f"{name}/sign" for name in names]) % 2, tf.int32)

    # no tf.function here, to build the graph of a change once: with several workers, TensorFlow
    # fails in it ("Haven't set up remote eager worker")
    def change(parts: tuple[tf.Tensor, ...]) -> tf.Tensor:
        image, own, sign = parts
        for k in range(count):
            ways = [partial(each, image, sign[k], strength) for each in CHANGES.values()]
            image = tf.ensure_shape(tf.switch_case(own[k], ways), images.shape[1:])
        return image

    signature = tf.TensorSpec(images.shape[1:], tf.uint8)
    parts = (images, chosen, signs)
    return tf.map_fn(change, parts, fn_output_signature=signature, parallel_iterations=_PARALLEL)


def _auto_contrast(image: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    """Stretch the values of each channel to 0 to 255."""
    x = tf.cast(image, tf.int32)
    least, most = (reduce(x, axis=[0, 1]) for reduce in (tf.reduce_min, tf.reduce_max))
    stretched = (x - least) * 255 // tf.maximum(most - least, 1)
    return tf.cast(tf.where(most > least, stretched, x), tf.uint8)


def _equalize(image: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    """Make the histogram of each channel even, as Pillow does it."""

    def channel(x: tf.Tensor) -> tf.Tensor:
        counts = tf.math.bincount(tf.reshape(x, [-1]), minlength=256, maxlength=256)
        step = (tf.size(x) - tf.gather(counts, tf.reduce_max(x))) // 255
        even = (tf.cumsum(counts, exclusive=True) + step // 2) // tf.maximum(step, 1)
        table = tf.where(step > 0, tf.minimum(even, 255), tf.range(256))
        return tf.gather(table, x)

    channels = tf.unstack(tf.cast(image, tf.int32), axis=-1)
    return tf.cast(tf.stack([channel(each) for each in channels], axis=-1), tf.uint8)


def _posterize(image: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    """Set the lowest bits to 0, up to four."""
    return tf.bitwise.bitwise_and(image, tf.constant(256 - 2 ** round(4 * strength), tf.uint8))


def _solarize(image: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    """Invert all values from a threshold on."""
    return tf.where(tf.cast(image, tf.int32) < 256 - round(256 * strength), image, 255 - image)


def _contrast(image: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    gray = _gray(image)
    count = tf.size(gray)
    return _blend(image, (2 * tf.reduce_sum(gray) + count) // (2 * count), sign, strength)


def _sharpness(image: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    x = tf.cast(image, tf.int32)
    height, width = image.shape[0], image.shape[1]
    if height < 3 or width < 3:
        return tf.identity(image)
    near = [x[i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)]
    total = tf.add_n(near) + 4 * x[1:-1, 1:-1]  # the pixel itself counts five times
    smooth = (2 * total + 13) // 26
    smooth = tf.concat([x[1:-1, :1], smooth, x[1:-1, -1:]], 1)  # the edge stays
    return _blend(image, tf.concat([x[:1], smooth, x[-1:]], 0), sign, strength)


def _gray(image: tf.Tensor) -> tf.Tensor:
    """Return the brightness of each pixel, int32 [h, w, 1], as Pillow computes it."""
    x = tf.cast(image, tf.int32)
    if image.shape[-1] != 3:
        return x[..., :1]
    weighted = tf.reduce_sum(x * [19595, 38470, 7471], axis=-1, keepdims=True)
    return (weighted + ONE // 2) // ONE


def _blend(image: tf.Tensor, other: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    """Move away from `other` (sign 1) or towards it, by up to 0.9 of the difference."""
    factor = ONE + sign * round(0.9 * strength * ONE)
    blended = (other * (ONE - factor) + tf.cast(image, tf.int32) * factor + ONE // 2) // ONE
    return tf.cast(tf.clip_by_value(blended, 0, 255), tf.uint8)


def _rotate(image: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    angle = math.radians(30 * strength)
    cosine, sine = round(math.cos(angle) * ONE), sign * round(math.sin(angle) * ONE)
    return _moved(image, cosine, sine, -sine, cosine)


def _moved(
    image: tf.Tensor,
    xx: tf.Tensor | int = ONE,
    xy: tf.Tensor | int = 0,
    yx: tf.Tensor | int = 0,
    yy: tf.Tensor | int = ONE,
    right: tf.Tensor | int = 0,
    down: tf.Tensor | int = 0,
) -> tf.Tensor:
    """Take each pixel from [[xx, xy], [yx, yy]] x (its position from the middle) + (right, down).

    The matrix is in parts of ONE. Positions are in half pixels, so that the middle is an integer.
    """
    height, width, channels = image.shape
    x = 2 * tf.range(width, dtype=tf.int64)[None, :] - (width - 1)
    y = 2 * tf.range(height, dtype=tf.int64)[:, None] - (height - 1)
    xx, xy, yx, yy, right, down = (tf.cast(e, tf.int64) for e in (xx, xy, yx, yy, right, down))
    column = (xx * x + xy * y + width * ONE) // (2 * ONE) + right
    row = (yx * x + yy * y + height * ONE) // (2 * ONE) + down
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    pixel = tf.where(inside, row * width + column, 0)
    pixels = tf.gather(tf.reshape(image, [-1, channels]), pixel)
    return tf.where(inside[..., None], pixels, tf.zeros_like(pixels))


def _slant(sign: tf.Tensor, strength: float) -> tf.Tensor:
    return sign * round(0.3 * strength * ONE)


def _pixels(length: int, sign: tf.Tensor, strength: float) -> tf.Tensor:
    return sign * round(150 / 331 * strength * length)


CHANGES: dict[str, Change] = {
    "identity": lambda image, *_: tf.identity(image),
    "auto-contrast": _auto_contrast,
    "equalize": _equalize,
    "posterize": _posterize,
    "solarize": _solarize,
    "color": lambda image, *by: _blend(image, _gray(image), *by),
    "contrast": _contrast,
    "brightness": lambda image, *by: _blend(image, tf.constant(0), *by),
    "sharpness": _sharpness,
    "shear-x": lambda image, *by: _moved(image, xy=_slant(*by)),
    "shear-y": lambda image, *by: _moved(image, yx=_slant(*by)),
    "translate-x": lambda image, *by: _moved(image, right=_pixels(image.shape[1], *by)),
    "translate-y": lambda image, *by: _moved(image, down=_pixels(image.shape[0], *by)),
    "rotate": _rotate,
}
"""By name, in the order by which random numbers choose. Some need no sign or no strength."""
