"""The mean over views of an image (test-time augmentation)."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline.maths.view_average import VIEWS, mean_over_views, see
from tiny import build_small_model


def test_a_view_is_the_image_moved_and_mirrored():
    images = np.arange(2 * 4 * 5 * 3, dtype=np.float32).reshape(2, 4, 5, 3)
    padded = np.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "reflect")
    for view in VIEWS["shifts"]:
        first = 1 - view.shift
        wanted = padded[:, first : first + 4, first : first + 5]
        wanted = wanted[:, :, ::-1] if view.mirrored else wanted
        np.testing.assert_array_equal(see(tf.constant(images), view), wanted)


@pytest.mark.parametrize(("views", "count"), [("none", 1), ("mirror", 2), ("shifts", 6)])
def test_views_give_the_mean_of_single_predictions(views, count):
    model = build_small_model()
    images = tf.constant(np.random.default_rng(0).standard_normal((4, 8, 8, 3)), tf.float32)
    chosen = VIEWS[views]
    assert len(chosen) == count
    assert sum(view.share for view in chosen) == 1
    single = [view.share * np.float64(model(see(images, view))) for view in chosen]
    found = mean_over_views(model, images, views)
    np.testing.assert_allclose(found, np.sum(single, 0), atol=1e-6)
    inputs = keras.Input((8, 8, 3))
    graph = keras.Model(inputs, mean_over_views(model, inputs, views))
    np.testing.assert_allclose(graph(images), found, atol=1e-6)
