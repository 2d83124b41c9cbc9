"""Random crops stay inside, and golden digests pin them."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from paceline.data.draws import Draws
from paceline.formats.encoded.boxes import area_box, short_side_box
from tiny import number

SIDES = (
    np.random.default_rng(0).integers(1, 600, (20_000, 2)) // np.array([[1, 1], [1, 20]] * 10_000)
    + 1
)


def box_of(choose, *options):
    draws = Draws(3, number(1), tf.range(len(SIDES), dtype=tf.int64))
    box = [part.numpy() for part in choose(*tf.constant(SIDES.T, tf.int64), draws, *options)]
    assert (box[0] >= 0).all()
    assert (box[1] >= 0).all()
    assert (box[2] >= 1).all()
    assert (box[3] >= 1).all()
    assert (box[0] + box[2] <= SIDES[:, 0]).all()
    assert (box[1] + box[3] <= SIDES[:, 1]).all()
    return box


@pytest.mark.parametrize("area_min", [0.05, 0.08, 1.0])
def test_area_crops_stay_inside_and_have_the_area_and_aspect_asked_for(area_min):
    _, _, height, width = box_of(area_box, area_min)
    large = (SIDES.min(axis=1) > 200) & (
        np.abs(np.log(SIDES[:, 0] / SIDES[:, 1])) < 0.2
    )  # where any crop fits
    share, aspect = (height * width / SIDES.prod(axis=1))[large], (width / height)[large]
    assert share.min() > area_min * 0.95
    assert 0.72 < aspect.min() < aspect.max() < 1.4
    if area_min < 0.1:
        assert abs(np.log(aspect).mean()) < 0.01
        assert share.min() < area_min * 1.1
        assert share.max() > 0.9


def test_short_side_crops_are_squares_of_the_side_asked_for():
    _, _, height, width = box_of(short_side_box, 224)
    share = height / SIDES.min(axis=1)
    assert (height == width).all()
    large = SIDES.min(axis=1) > 200
    assert 224 / 512 - 0.01 < share[large].min() < 0.45
    assert 0.86 < share[large].max() < 224 / 256 + 0.01


@pytest.mark.parametrize(
    ("choose", "option", "golden"),
    [(area_box, 0.08, "dcd47c5cd1f178e2"), (short_side_box, 224, "2c28316dcea77dfa")],
)
def test_golden_digests_pin_the_boxes_of_random_crops(choose, option, golden):
    """Integers and square roots of doubles: the same on every kind of CPU."""
    boxes = np.stack(box_of(choose, option), axis=1).astype("<i8")
    assert hashlib.sha256(boxes.tobytes()).hexdigest()[:16] == golden
