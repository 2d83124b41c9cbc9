"""Encoded images of any size -> images of one size, values 0 to 255; in TensorFlow ops.

Boxes to crop are chosen for a whole batch at once (`Box`). Then each image is decoded, resized
(bilinear with antialiasing) and turned upright, in the same way for every format.
docs/using-a-run.md describes it exactly. Training alone has a faster way for JPEGs, which are
decoded more often than anything else.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from paceline.data import batches
from paceline.data.augment.changes import random_aspect
from paceline.data.draws import Draws, unit
from paceline.data.images import mirrored, scale
from paceline.experiment.experiment import Experiment
from paceline.formats.encoded.decode import DCT, Headers, decode_any, read_headers
from paceline.kernels.arithmetic import resized
from paceline.maths.replica import opaque

_RATIOS = (1, 2, 4, 8)  # a JPEG decoder can make an image smaller by these in less time than whole
_PARALLEL = 32  # images in work at a time, by as many cores as there are
TRIES = 10  # boxes drawn for a random area before the largest that fits is taken
_WIDEST = 4 / 3  # aspect ratio of a random area: from its reciprocal to this


class Box(NamedTuple):
    """Which part of each upright image is cropped, int64 [n] in pixels.

    Boxes are computed with whole numbers, and + - x / and square roots of doubles: these give the
    same bits on every machine, which exp and log do not.
    """

    top: tf.Tensor
    left: tf.Tensor
    height: tf.Tensor
    width: tf.Tensor


def train_images(
    experiment: Experiment, encoded: tf.Tensor, draws: Draws, image_size: int
) -> tf.Tensor:
    """Return random crops of strings [n], flipped where the experiment asks for it."""
    settings, size = experiment.augment, image_size or experiment.data.image_size
    headers = _sized_headers(encoded)
    crops = {
        "area": partial(area_box, area_min=settings.crop_area_min),
        "short-side": partial(short_side_box, size=size),
    }
    box = crops[settings.crop](*_upright_size(headers), draws)
    shorter = tf.minimum(box.height, box.width)[:, None]
    smaller = shorter // tf.constant(_RATIOS[1:], tf.int64) >= size
    ratio = tf.reduce_sum(tf.cast(smaller, tf.int32), axis=1)
    way = tf.where(headers.is_jpeg, 1 + ratio, 0)
    return decode_boxes(encoded, headers, box, (size, size), mirrored(settings, draws), way)


def evaluation_images(experiment: Experiment, encoded: tf.Tensor) -> tf.Tensor:
    """Return central crops of strings [n]: 7/8 of the short side, that is 224 of 256."""
    size, headers = experiment.data.image_size, _sized_headers(encoded)
    box = central_box(*_upright_size(headers), size)
    return decode_boxes(encoded, headers, box, (size, size))


def prepare_encoded(
    experiment: Experiment,
    stored: tuple[int, int, int] | None,
    encoded: tf.Tensor,
    fitting: bool = False,
) -> tf.Tensor:
    """Return images of strings [n] as evaluation would see them, scaled: for prediction. Images of
    a source with one shape (`stored`) are made to fit it, unless all do (`fitting`)."""
    with tf.device("CPU:0"):
        raw = _fitted_images(encoded, stored, fitting) if stored else encoded
        return scale(experiment.scaling, batches.evaluation_images(experiment, raw))


def _fitted_images(encoded: tf.Tensor, shape: tuple[int, int, int], fitting: bool) -> tf.Tensor:
    """Return uint8 [n, *shape] of strings [n], as a source of one shape would hold them.

    The largest box in the middle with the shape's proportions is resized and rounded. An image of
    that size stays as it is. If all have it (`fitting`), they are only decoded.
    """
    height, width, channels = shape
    if fitting:
        images = _decode_by_tens(encoded, [height, width, 3])
    else:
        headers = _sized_headers(encoded)
        box = fitting_box(*_upright_size(headers), height, width)
        pixels = decode_boxes(encoded, headers, box, (height, width))
        images = tf.cast(tf.round(pixels), tf.uint8)
    if channels == 1:
        weighted = tf.cast(images, tf.int32) * [2989, 5870, 1140]
        images = tf.cast((tf.reduce_sum(weighted, -1, keepdims=True) + 5000) // 10000, tf.uint8)
    return images


def _sized_headers(encoded: tf.Tensor) -> Headers:
    """Return the headers; where the first bytes do not tell the size, decoding does."""
    headers = read_headers(encoded)
    sizes = tf.stack([headers.height, headers.width], axis=1)
    unknown = tf.reduce_min(sizes, axis=1) == 0

    def size_of(one: tuple[tf.Tensor, ...]) -> tf.Tensor:
        string, size, is_unknown = one
        return tf.cond(is_unknown, lambda: tf.shape(decode_any(string), tf.int64)[:2], lambda: size)

    sizes = tf.cond(
        tf.reduce_any(unknown),
        lambda: _each(size_of, (encoded, sizes, unknown), [2], tf.int64),
        lambda: sizes,
    )
    return headers._replace(height=sizes[:, 0], width=sizes[:, 1])


def _upright_size(headers: Headers) -> tuple[tf.Tensor, tf.Tensor]:
    lying, height, width = headers.orientation >= 5, headers.height, headers.width
    return tf.where(lying, width, height), tf.where(lying, height, width)


def decode_boxes(
    encoded: tf.Tensor,
    headers: Headers,
    box: Box,
    shape: tuple[int, int],
    mirror: tf.Tensor | None = None,
    way: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return float32 [n, *shape, 3]: the boxes of the upright images, some mirrored. `way` is 0 to
    decode the complete image, or 1 + an index of _RATIOS to decode the box of a JPEG."""
    lying, flip_x, flip_y = (
        tf.reduce_any(headers.orientation[:, None] == tf.constant(turned, tf.int64), axis=1)
        for turned in ((5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8))
    )
    tall, wide = _upright_size(headers)
    top = tf.where(flip_y, tall - box.top - box.height, box.top)
    left = tf.where(flip_x, wide - box.left - box.width, box.left)
    upright = tf.stack([top, left, box.height, box.width], axis=1)
    swapped = tf.gather(upright, [1, 0, 3, 2], axis=1)
    stored = tf.cast(tf.where(lying[:, None], swapped, upright), tf.int32)
    if way is not None:  # in pixels of the smaller image that the decoder makes
        ratio = tf.gather([1, *_RATIOS], way)[:, None]
        corners = stored[:, :2], stored[:, :2] + stored[:, 2:]
        start, end = ((corner + ratio // 2) // ratio for corner in corners)
        stored = tf.concat([start, end - start], axis=1)
    flags = ((flip_x if mirror is None else flip_x ^ mirror, 1), (flip_y, 2), (lying, 4))
    turn = sum(tf.cast(flag, tf.int32) * bit for flag, bit in flags)
    parts = (encoded, stored, turn) if way is None else (encoded, stored, turn, way)
    return _each(partial(_decode_one, shape=shape), parts, [*shape, 3], tf.float32)


def _decode_one(parts: tuple[tf.Tensor, ...], shape: tuple[int, int]) -> tf.Tensor:
    """Decode, resize and turn one image. What few images need is opaque: one operation, which costs
    no time in the others."""
    string, window, turn, *way = parts
    size = shape if shape[0] == shape[1] else tf.where(turn >= 4, shape[::-1], shape)

    def decode_whole() -> tf.Tensor:
        begin, sides = tf.concat([window[:2], [0]], 0), tf.concat([window[2:], [3]], 0)
        return resized(tf.slice(decode_any(string), begin, sides), size)

    def decode_box() -> tf.Tensor:
        # It takes 0.6 of the time of decoding everything, because a factor of two at most remains
        # for resizing, which needs no antialiasing filter then. Published ResNets were trained so.
        decode = partial(tf.image.decode_and_crop_jpeg, string, window, 3, dct_method=DCT)
        pixels = tf.switch_case(way[0] - 1, [partial(decode, ratio=ratio) for ratio in _RATIOS])
        return resized(pixels, shape, antialias=False)

    image = tf.cond(way[0] > 0, decode_box, opaque(decode_whole)) if way else decode_whole()
    turned = [partial(_turned, image, code) for code in range(8)]
    rare = opaque(lambda: tf.switch_case(turn, turned))
    return tf.ensure_shape(tf.switch_case(tf.minimum(turn, 2), [*turned[:2], rare]), [*shape, 3])


def _decode_by_tens(encoded: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """Decode images of one small shape, ten in a turn of the loop, because a turn is expensive."""
    count = tf.size(encoded)
    padded = tf.concat([encoded, tf.repeat(encoded[:1], -count % 10)], 0)

    def ten(strings: tf.Tensor) -> tf.Tensor:
        images = [tf.image.decode_png(string, channels=3) for string in tf.unstack(strings)]
        return tf.stack([tf.ensure_shape(image, shape) for image in images])

    images = _each(ten, tf.reshape(padded, [-1, 10]), [10, *shape], tf.uint8)
    return tf.reshape(images, [-1, *shape])[:count]


def _each(
    function: Callable[..., tf.Tensor], parts: tf.Tensor, shape: list[int], dtype: tf.DType
) -> tf.Tensor:
    """Return a function's result for each image, some images at a time."""
    signature = tf.TensorSpec(shape, dtype)
    return tf.map_fn(function, parts, fn_output_signature=signature, parallel_iterations=_PARALLEL)


def _turned(image: tf.Tensor, code: int) -> tf.Tensor:
    """Bits of `code`: 4 transposes, then 1 flips left and right, 2 up and down."""
    if code & 4:
        image = tf.transpose(image, [1, 0, 2])
    axes = [axis for axis, bit in ((0, 2), (1, 1)) if code & bit]
    return tf.reverse(image, axes) if axes else tf.identity(image)


def area_box(height: tf.Tensor, width: tf.Tensor, draws: Draws, area_min: float) -> Box:
    """A random box: `area_min` to 1 of the area, with an aspect of 3/4 to 4/3, at any place."""
    tall, wide = tf.cast(height, tf.float64)[:, None], tf.cast(width, tf.float64)[:, None]
    share, slant = (
        unit(draws.several([f"{name}/{k}" for k in range(TRIES)]))
        for name in ("area/share", "area/aspect")
    )
    area = (area_min + share * (1.0 - area_min)) * tall * wide
    aspect = random_aspect(slant, _WIDEST)
    tries = tf.round(tf.sqrt(tf.stack([area / aspect, area * aspect], axis=-1)))
    fits = tf.reduce_all((tries >= 1) & (tries <= tf.stack([tall, wide], axis=-1)), axis=-1)
    largest = tf.round(
        tf.concat([tf.minimum(tall, wide * _WIDEST), tf.minimum(wide, tall * _WIDEST)], axis=1)
    )
    drawn = tf.gather(tries, tf.argmax(fits, axis=1), batch_dims=1)
    sides = tf.cast(
        tf.where(tf.reduce_any(fits, axis=1)[:, None], drawn, tf.maximum(largest, 1.0)), tf.int64
    )
    return _placed(height, width, sides[:, 0], sides[:, 1], draws)


def short_side_box(height: tf.Tensor, width: tf.Tensor, draws: Draws, size: int) -> Box:
    """A square at a random place: `size` pixels of the image whose short side was made 256/224 to
    512/224 times `size`."""
    shortest, longest = short_side(size), 2 * short_side(size)
    short = shortest + draws.one("short-side") % (longest - shortest + 1)
    side = _side(height, width, size, short)
    return _placed(height, width, side, side, draws)


def central_box(height: tf.Tensor, width: tf.Tensor, size: int) -> Box:
    """The central square: `size` pixels after the short side became 256/224 times `size`."""
    side = _side(height, width, size, short_side(size))
    return Box((height - side) // 2, (width - side) // 2, side, side)


def fitting_box(height: tf.Tensor, width: tf.Tensor, tall: int, wide: int) -> Box:
    """The largest box in the middle with the proportions of `tall` x `wide`."""
    rows = tf.minimum(height, tf.maximum((width * tall + wide // 2) // wide, 1))
    columns = tf.minimum(width, tf.maximum((height * wide + tall // 2) // tall, 1))
    return Box((height - rows) // 2, (width - columns) // 2, rows, columns)


def short_side(size: int) -> int:
    """Return 8/7 of the size, rounded: 256 for 224."""
    return (size * 8 + 3) // 7


def _side(height: tf.Tensor, width: tf.Tensor, size: int, short: tf.Tensor | int) -> tf.Tensor:
    return tf.maximum((2 * size * tf.minimum(height, width) + short) // (2 * short), 1)


def _placed(
    height: tf.Tensor, width: tf.Tensor, tall: tf.Tensor, wide: tf.Tensor, draws: Draws
) -> Box:
    top = draws.one("crop/row") % (height - tall + 1)
    return Box(top, draws.one("crop/column") % (width - wide + 1), tall, wide)
