"""EXIF orientations, and headers that are damaged."""

import numpy as np
import tensorflow as tf

from encoded_images import (
    check_against_pil,
    drawn,
    encode,
    exif_segment,
    headers_of,
    with_orientation,
)


def test_exif_orientations_end_the_right_way_up():
    jpeg = encode(drawn(90, 64))
    filled = (
        b"\xff\xe2\x00\x04ab" + b"\xff\xff"
    )  # another segment, then filling bytes before the marker
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
    strings = [
        b"",
        b"\xff\xd8\xff",
        b"\xff" * 3000,
        b"\xff\xd8" + b"\xff" * 3000,
        b"\x89PNG\r\n\x1a\n",
    ]
    strings += [jpeg[: random.integers(0, len(jpeg))] for _ in range(100)]
    for _ in range(200):
        damaged = bytearray(with_orientation(jpeg, 6, "<"))
        damaged[random.integers(0, 200)] = random.integers(0, 256)
        strings.append(bytes(damaged))
    orientation = headers_of(tf.constant(strings)).orientation.numpy()
    assert orientation.min() >= 1
    assert orientation.max() <= 8
