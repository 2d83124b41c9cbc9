"""Encoded images, and what evaluation should make of them, computed by Pillow and NumPy."""

import io
import struct

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps

from paceline.experiment.experiment import Data, Experiment
from paceline.formats.encoded.decode import read_headers
from paceline.formats.encoded.prepare import evaluation_images, short_side

SIZE = 40


def drawn(width, height, seed=0):
    """Return soft blobs of color: no detail that a different filter would change, no symmetry."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.BICUBIC)


def encode(picture, kind="JPEG", **options):
    file = io.BytesIO()
    picture.save(file, kind, **({"quality": 95} | options if kind == "JPEG" else options))
    return file.getvalue()


def exif_segment(orientation, order):
    """An APP1 segment with three tags, the orientation last; `order` is < or >."""
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    tags = [struct.pack(order + "HHII", tag, 4, 1, 6) for tag in (0x0100, 0x0101)]
    tags.append(struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0))
    body = b"Exif\0\0" + head + struct.pack(order + "H", len(tags)) + b"".join(tags) + bytes(4)
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def with_orientation(jpeg, orientation, order, before=b""):
    """Behind the JFIF segment, and behind `before`."""
    end = 4 + struct.unpack(">H", jpeg[4:6])[0]
    return jpeg[:end] + before + exif_segment(orientation, order) + jpeg[end:]


def upright(encoded):
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture) // 257).astype(np.uint8))
    return picture.convert("RGB")


def expected(encoded, size=SIZE):
    """The central crop, computed by PIL and NumPy from the whole decoded picture."""
    pixels = np.asarray(upright(encoded), np.float64)
    height, width, _ = pixels.shape
    side = int(size * min(height, width) / short_side(size) + 0.5)
    top, left = (height - side) // 2, (width - side) // 2
    return bilinear(bilinear(pixels[top : top + side, left : left + side], size, 0), size, 1)


def bilinear(pixels, size, axis):
    length = pixels.shape[axis]
    places = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
    low = np.floor(places).astype(int)
    share = np.expand_dims(places - low, tuple(other for other in range(3) if other != axis))
    return (
        pixels.take(low, axis) * (1 - share)
        + pixels.take(np.minimum(low + 1, length - 1), axis) * share
    )


@tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
def evaluated(encoded):
    return evaluation_images(Experiment(data=Data(image_size=SIZE)), encoded)


@tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
def headers_of(encoded):
    return read_headers(encoded)


def check_against_pil(names, encoded, tolerance=2.0):
    found = evaluated(tf.constant(encoded)).numpy()
    assert found.shape == (len(encoded), SIZE, SIZE, 3)
    apart = {
        name: np.abs(one - expected(string)).mean()
        for name, one, string in zip(names, found, encoded, strict=True)
    }
    assert {name: value for name, value in apart.items() if value > tolerance} == {}
