"""What is in encoded images: sizes and orientations from their first bytes, and their pixels.

`read_headers` walks over the segments of all JPEGs of a batch at once. TensorFlow's own op gives a
JPEG's size one image at a time, and nothing in TensorFlow tells its EXIF orientation. `decode_any`
puts right what TensorFlow's decoders read differently from other programs, or refuse: a BMP with a
palette comes out as its indices, a WebP with transparency is an error.
"""

from typing import NamedTuple

import tensorflow as tf

DCT = "INTEGER_ACCURATE"  # as Pillow decodes; TensorFlow's default is off by up to 18 of 255
_MAX_SEGMENTS = 1000  # of a JPEG before its frame; extended XMP and color profiles can take dozens
_MAX_TAGS = 64  # entries of the first EXIF directory that are looked at
_ORIENTATION_TAG = 0x0112


class Headers(NamedTuple):
    """Of n images: int64 sizes as stored, 0 where the first bytes do not tell; the EXIF
    orientation, int64 1 to 8; JPEG or not."""

    height: tf.Tensor
    width: tf.Tensor
    orientation: tf.Tensor
    is_jpeg: tf.Tensor


def read_headers(encoded: tf.Tensor) -> Headers:
    """Read the headers of strings [n]. Sizes of formats other than JPEG and PNG need decoding."""
    start = bytes_at(encoded, tf.zeros_like(encoded, tf.int64), 24)
    is_jpeg = starts_with(start, b"\xff\xd8\xff")
    is_png = starts_with(start, b"\x89PNG\r\n\x1a\n")
    height, width, exif = _walk(encoded, is_jpeg)
    height = tf.where(is_png, _number(start[:, 20:24]), height)
    width = tf.where(is_png, _number(start[:, 16:20]), width)
    # most images of most data sets have no EXIF
    orientation = tf.cond(
        tf.reduce_any(exif > 0),
        lambda: _orientation(encoded, exif),
        lambda: tf.ones_like(exif),
        name="orientation",
    )
    return Headers(height, width, orientation, is_jpeg)


def bytes_at(encoded: tf.Tensor, position: tf.Tensor, count: int) -> tf.Tensor:
    """Return bytes of strings [n], int64 [n, count]; zeros beyond the end of a string."""
    position = tf.minimum(position, tf.cast(tf.strings.length(encoded), tf.int64))
    counts = tf.fill(tf.shape(position), tf.constant(count, tf.int64))
    piece = tf.strings.substr(encoded, position, counts)
    return tf.cast(tf.io.decode_raw(piece, tf.uint8, fixed_length=count), tf.int64)


def starts_with(numbers: tf.Tensor, magic: bytes) -> tf.Tensor:
    """Return whether each row of bytes [n, k] begins with `magic`."""
    return tf.reduce_all(numbers[:, : len(magic)] == tf.constant(list(magic), tf.int64), axis=1)


def _number(numbers: tf.Tensor) -> tf.Tensor:
    """Return the numbers [...] of big-endian bytes [..., k]."""
    places = [256**power for power in reversed(range(numbers.shape[-1]))]
    return tf.reduce_sum(numbers * tf.constant(places, tf.int64), axis=-1)


def _walk(encoded: tf.Tensor, is_jpeg: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return height, width and position of the EXIF segment of JPEGs; 0 if not found."""

    def body(position: tf.Tensor, active: tf.Tensor, *found: tf.Tensor) -> list[tf.Tensor]:
        height, width, exif = found
        head = bytes_at(encoded, position, 10)
        marker, length = head[:, 1], _number(head[:, 2:4])
        # C4, C8 and CC are not frames; FF is filling before a marker
        frame = (marker // 16 == 0xC) & (marker != 0xC4) & (marker != 0xC8) & (marker != 0xCC)
        is_exif = (exif == 0) & (marker == 0xE1) & starts_with(head[:, 4:], b"Exif\0\0")
        height = tf.where(frame & active, _number(head[:, 5:7]), height)
        width = tf.where(frame & active, _number(head[:, 7:9]), width)
        exif = tf.where(is_exif & active, position, exif)
        filling = marker == 0xFF
        segment = (length >= 2) & (marker >= 0xC0) & (marker != 0xDA)
        active &= (head[:, 0] == 0xFF) & ~frame & (filling | segment)
        step = tf.where(filling, tf.ones_like(length), 2 + length)
        return [tf.where(active, position + step, position), active, height, width, exif]

    zeros = tf.zeros_like(encoded, tf.int64)
    _, _, height, width, exif = tf.while_loop(
        lambda position, active, *_: tf.reduce_any(active),
        body,
        [zeros + 2, is_jpeg, zeros, zeros, zeros],
        maximum_iterations=_MAX_SEGMENTS,
    )
    return height, width, exif


def _orientation(encoded: tf.Tensor, exif: tf.Tensor) -> tf.Tensor:
    """The orientation tag of the TIFF directory in the EXIF segment at `exif`, else 1."""
    tiff = exif + 10  # marker, length, "Exif", two zeros
    head = bytes_at(encoded, tiff, 8)
    little = starts_with(head, b"II")

    def number(numbers: tf.Tensor) -> tf.Tensor:
        order = tf.reshape(little, [-1] + [1] * (len(numbers.shape) - 1))
        return _number(tf.where(order, tf.reverse(numbers, [-1]), numbers))

    directory = tiff + number(head[:, 4:8])
    count = number(bytes_at(encoded, directory, 2))
    entries = tf.reshape(bytes_at(encoded, directory + 2, 12 * _MAX_TAGS), [-1, _MAX_TAGS, 12])
    wanted = number(entries[:, :, 0:2]) == _ORIENTATION_TAG
    wanted &= tf.range(_MAX_TAGS, dtype=tf.int64) < count[:, None]
    values = number(entries[:, :, 8:10])
    value = tf.reduce_max(tf.where(wanted, values, tf.zeros_like(values)), axis=1)
    return tf.where((exif > 0) & (value >= 1) & (value <= 8), value, tf.ones_like(value))


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
    # can write beyond its memory (2.21), so such a file must not get to `DecodeWebP`.
    is_animated = starts_with(start[:, 12:], b"VP8X")[0] & (start[0, 20] // 2 % 2 == 1)
    kind = tf.cond(has_palette, lambda: 1, lambda: tf.cast(is_webp & ~is_animated, tf.int32) * 2)
    kind = tf.where(starts_with(start, b"GIF8")[0], 3, kind)
    ways = (
        lambda: _decode_plain(string),
        lambda: _decode_palette(string),
        lambda: tf.raw_ops.DecodeWebP(contents=string, channels=0)[0, ..., :3],
        lambda: _decode_gif(string, start[0]),
    )
    return tf.switch_case(kind, ways)


def _decode_plain(string: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_image(string, channels=3, expand_animations=False)


def _decode_palette(string: tf.Tensor) -> tf.Tensor:
    """Decode a BMP of 8 bits. Its palette is between the header and the pixels."""
    numbers = tf.io.decode_raw(tf.strings.substr(string, 10, 8), tf.int32)
    first, end = 14 + numbers[1], numbers[0]
    colors = tf.io.decode_raw(tf.strings.substr(string, first, (end - first) // 4 * 4), tf.uint8)
    colors = tf.reverse(tf.reshape(colors, [-1, 4])[:, :3], [1])  # blue comes first
    indices = tf.io.decode_bmp(string)[..., 0]
    return tf.gather(colors, tf.cast(indices, tf.int32))


def _decode_gif(string: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Decode the first frame. TensorFlow ignores the size of the image, of which a frame can be a
    part, so other programs would see another image: that is an error."""
    image = _decode_plain(string)
    size = tf.stack([start[8] + 256 * start[9], start[6] + 256 * start[7]])
    filled = tf.reduce_all(tf.shape(image, tf.int64)[:2] == size)
    check = tf.debugging.Assert(filled, ["DecodeImage: the first frame of a GIF does not fill it"])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(image)
