"""The built-in data set: the same bytes everywhere, and not trivial."""

import hashlib

import numpy as np

from paceline.data.build_source import build_source
from paceline.data.shapes import draw_shapes
from paceline.experiment.experiment import Data
from paceline.formats.check import describe


def test_shapes_are_the_same_bytes_everywhere():
    digest = hashlib.sha256()
    for split in (0, 1):
        images, labels = draw_shapes(split, 300)
        digest.update(images.tobytes() + labels.astype("<i4").tobytes())
    assert digest.hexdigest() == "3c77b02ab0a7e0ac2862caf5606ace3c6c8e46e83b35c489baa0affa5474c181"


def test_a_shape_does_not_depend_on_how_many_are_drawn():
    images, labels = draw_shapes(0, 777)
    fewer, fewer_labels = draw_shapes(0, 250)
    np.testing.assert_array_equal(images[:250], fewer)
    np.testing.assert_array_equal(labels[:250], fewer_labels)


def test_no_test_image_is_a_training_image():
    train, test = ({image.tobytes() for image in draw_shapes(split, 1000)[0]} for split in (0, 1))
    assert len(train) == len(test) == 1000
    assert not train & test


def test_shapes_have_the_sizes_asked_for_and_even_classes():
    description = describe(build_source(Data(source="shapes", train_size=230, test_size=101)))
    assert description.per_class["train"] == [23] * 10
    assert description.per_class["test"] == [11] + [10] * 9
