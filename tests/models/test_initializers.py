"""The initial weights that Keras lacks."""

import numpy as np
import pytest
import tensorflow as tf

from paceline.models.initializers import Identity


@pytest.mark.parametrize("channels", [(4, 8), (8, 4), (8, 8)])
def test_identity_copies_its_input_into_the_first_channels(channels):
    inputs, outputs = channels
    x = np.random.default_rng(0).standard_normal((2, 5, 5, inputs)).astype(np.float32)
    kernel = Identity(seed=3)((3, 3, inputs, outputs), "float32")
    y = tf.nn.conv2d(x, kernel, 1, "SAME").numpy()
    common = min(channels)
    np.testing.assert_array_equal(y[..., :common], x[..., :common])
    rest = np.asarray(kernel)[..., common:]
    assert rest.size == 0 or 0.9 < rest.std() * (3 * 9 * inputs) ** 0.5 < 1.1
    np.testing.assert_array_equal(kernel, Identity(seed=3)((3, 3, inputs, outputs), "float32"))
