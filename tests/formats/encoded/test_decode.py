"""What is decoded is what Pillow decodes, the right way up; what TensorFlow cannot is refused."""

import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from encoded_images import (
    check_against_pil,
    drawn,
    encode,
    evaluated,
    exif_segment,
    headers_of,
    with_orientation,
)
from paceline.formats.encoded.decode import decode_any
from paceline.formats.image_folder import inspect_image
from paceline.formats.reading import explain


@tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.string)])
def decoded(data):
    return decode_any(data)


def transparent(picture):
    """The upper third cannot be seen, the lower half only in part."""
    pixels = np.array(picture.convert("RGBA"))
    pixels[: len(pixels) // 3, :, 3], pixels[len(pixels) // 2 :, :, 3] = 0, 128
    return Image.fromarray(pixels)


def several(picture, kind, **options):
    other = Image.new("RGB", picture.size, "red")
    return encode(picture, kind, save_all=True, append_images=[other], duration=50, **options)


def gif_with_a_small_frame():
    """The frame begins at (2, 3) of an image of 50 x 40."""
    data = bytearray(encode(drawn(30, 20).quantize(4), "GIF"))
    frame = data.index(b"\x2c\0\0\0\0" + struct.pack("<HH", 30, 20))
    data[6:10], data[frame + 1 : frame + 5] = struct.pack("<HH", 50, 40), struct.pack("<HH", 2, 3)
    return bytes(data)


def with_bits(bits):
    data = bytearray(encode(drawn(50, 40), "BMP"))
    data[28:30] = struct.pack("<H", bits)
    return bytes(data)


def test_formats_decode_to_three_channels():
    picture = drawn(90, 70)
    grey16 = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    formats = {
        "jpeg": encode(picture),
        "progressive": encode(picture, progressive=True),
        "grey": encode(picture.convert("L")),
        "cmyk, inverted as Adobe does": encode(picture.convert("CMYK")),
        "png, whatever its name says": encode(picture, "PNG"),
        "png with alpha": encode(picture.convert("RGBA"), "PNG"),
        "png with 16 bits": encode(grey16, "PNG"),
        "palette": encode(picture.quantize(200), "PNG"),
        "gif": encode(picture.quantize(200), "GIF"),
        "bmp": encode(picture, "BMP"),
        "webp": encode(picture, "WEBP", lossless=True),
        "one pixel": encode(drawn(1, 1), "PNG"),
        "a narrow strip": encode(drawn(300, 3)),
    }
    check_against_pil(list(formats), list(formats.values()))


def test_what_tensorflow_alone_reads_differently_is_as_pillow_and_predict_read_it():
    picture = drawn(50, 40)
    files = {
        "a palette": encode(picture.quantize(16), "BMP"),
        "a palette of greys": encode(picture.convert("L"), "BMP"),
        "32 bits": encode(picture.convert("RGBA"), "BMP"),
        "frames": several(picture.quantize(16), "GIF"),
        "webp": encode(transparent(picture), "WEBP", lossless=True, exact=True),
        "webp with losses": encode(transparent(picture), "WEBP"),
        "webp without transparency": encode(picture, "WEBP"),
    }
    for name, data in files.items():
        wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        np.testing.assert_array_equal(decoded(data).numpy(), wanted, name)


def test_what_is_transparent_in_a_gif_is_black():
    data = encode(transparent(drawn(50, 40)), "GIF")
    found = decoded(data).numpy()
    assert found[:13].max() == 0
    assert found[13:].max() > 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (several(drawn(50, 40), "WEBP"), "an animated WebP cannot be trained on"),
        (gif_with_a_small_frame(), "first frame of this GIF does not fill"),
        (encode(drawn(50, 40).convert("1"), "BMP"), "8, 24 or 32 bits"),
        (with_bits(16), "8, 24 or 32 bits"),
    ],
)
def test_what_tensorflow_cannot_decode_is_refused_by_data_check_and_in_training(data, reason):
    """Pillow reads all of them."""
    assert Image.open(io.BytesIO(data)).size == (50, 40)
    with pytest.raises(ValueError, match=reason):
        inspect_image(data)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        evaluated(tf.constant([data]))
    assert "`paceline data check DIR` finds its file" in str(explain(error.value))


def test_exif_orientations_end_the_right_way_up():
    jpeg = encode(drawn(90, 64))
    filled = b"\xff\xe2\x00\x04ab\xff\xff"  # another segment, then filling bytes
    turned = {
        (order, orientation, before): with_orientation(jpeg, orientation, order, before)
        for order in "<>"
        for orientation in range(1, 9)
        for before in (b"", filled)
    }
    check_against_pil([str(name) for name in turned], list(turned.values()))
    orientations = headers_of(tf.constant(list(turned.values()))).orientation.numpy()
    assert orientations.tolist() == [orientation for _, orientation, _ in turned]


def test_a_wrong_orientation_is_read_as_none():
    jpeg = encode(drawn(30, 20))
    strings = [
        jpeg,
        with_orientation(jpeg, 0, "<"),
        with_orientation(jpeg, 9, ">"),
        jpeg[:20] + exif_segment(6, "<")[:30],
    ]
    assert headers_of(tf.constant(strings)).orientation.numpy().tolist() == [1, 1, 1, 1]


def test_headers_of_damaged_images_end():
    jpeg, random = encode(drawn(30, 20)), np.random.default_rng(0)
    strings = [b"", b"\xff\xd8\xff", b"\xff\xd8" + b"\xff" * 3000, b"\x89PNG\r\n\x1a\n"]
    strings += [jpeg[: random.integers(0, len(jpeg))] for _ in range(100)]
    for _ in range(200):
        damaged = bytearray(with_orientation(jpeg, 6, "<"))
        damaged[random.integers(0, 200)] = random.integers(0, 256)
        strings.append(bytes(damaged))
    orientation = headers_of(tf.constant(strings)).orientation.numpy()
    assert orientation.min() >= 1
    assert orientation.max() <= 8
