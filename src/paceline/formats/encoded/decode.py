"""One encoded image -> uint8 RGB, in TensorFlow ops: JPEG, PNG, GIF, BMP or WebP.

TensorFlow's own decoders do not agree with other programs on some files, or fail: a BMP with a
palette comes out as its indices, a WebP with transparency is refused. Both are put right here.
"""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from paceline.formats.encoded.headers import bytes_at, starts_with

DCT = "INTEGER_ACCURATE"  # as Pillow decodes; TensorFlow's default is off by up to 18 of 255


def decode_any(string: tf.Tensor) -> tf.Tensor:
    """Return the pixels [height, width, 3]; grey and CMYK come out in three channels too."""
    image = tf.cond(
        tf.image.is_jpeg(string),
        lambda: tf.image.decode_jpeg(string, channels=3, dct_method=DCT),
        lambda: _decode_other(string),
    )
    return tf.ensure_shape(image, [None, None, 3])


def _decode_other(string: tf.Tensor) -> tf.Tensor:
    start = bytes_at(string[None], tf.zeros([1], tf.int64), 30)
    has_palette = starts_with(start, b"BM")[0] & (start[0, 28] == 8)
    is_webp = starts_with(start, b"RIFF")[0] & starts_with(start[:, 8:], b"WEBP")[0]
    # TensorFlow refuses an animated WebP of three channels. With any other number of channels it
    # can write beyond its memory (2.21), so such a file must not get to `_decode_webp`.
    is_animated = starts_with(start[:, 12:], b"VP8X")[0] & (start[0, 20] // 2 % 2 == 1)
    kind = tf.cond(has_palette, lambda: 1, lambda: tf.cast(is_webp & ~is_animated, tf.int32) * 2)
    kind = tf.where(starts_with(start, b"GIF8")[0], 3, kind)
    ways = (_decode_plain, _decode_palette, _decode_webp, partial(_decode_gif, start=start[0]))
    return tf.switch_case(kind, [partial(way, string) for way in ways])


def _decode_plain(string: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_image(string, channels=3, expand_animations=False)


def _decode_palette(string: tf.Tensor) -> tf.Tensor:
    """Decode a BMP of 8 bits. Its palette is between the header and the pixels."""
    numbers = tf.io.decode_raw(tf.strings.substr(string, 10, 8), tf.int32)
    first, end = 14 + numbers[1], numbers[0]
    colours = tf.io.decode_raw(tf.strings.substr(string, first, (end - first) // 4 * 4), tf.uint8)
    colours = tf.reverse(tf.reshape(colours, [-1, 4])[:, :3], [1])  # blue comes first
    indices = tf.io.decode_bmp(string)[..., 0]
    return tf.gather(colours, tf.cast(indices, tf.int32))


def _decode_webp(string: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.DecodeWebP(contents=string, channels=0)[0, ..., :3]


def _decode_gif(string: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Decode the first frame. TensorFlow ignores the size of the image, of which a frame can be a
    part, so other programs would see another image: that is an error."""
    image = _decode_plain(string)
    size = tf.stack([start[8] + 256 * start[9], start[6] + 256 * start[7]])
    filled = tf.reduce_all(tf.shape(image, tf.int64)[:2] == size)
    check = tf.debugging.Assert(filled, ["DecodeImage: the first frame of a GIF does not fill it"])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(image)
