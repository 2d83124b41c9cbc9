"""Models on Paceline's kernels compute the same with the same weights."""

import keras
import numpy as np
import pytest

from kernel_checks import error, kinds, model_errors, model_values, needs_kernels, random
from paceline import accelerate
from paceline.experiment.experiment import Model
from paceline.kernels import ops
from paceline.models.layers import SigmoidGelu
from paceline.models.resnet import build_resnet
from paceline.models.speedrun import build_speedrun

pytestmark = needs_kernels

MODELS = {
    "v1": (Model(depth=8), 16, 7, 0, 0),
    "v2": (Model(depth=8, version="v2"), 16, 4, 3, 3),
    "leaky": (Model(depth=8, leakiness=0.1), 16, 7, 0, 0),
    "projections": (Model(depth=8, shortcut="B-norm"), 16, 9, 0, 0),
    # Leaky by 0.99: with a ReLU, activations on the other side of 0 change gradients. On four
    # seeds, own kernels differed from double precision by up to 1.4 %, TensorFlow's by 4.3 %.
    "bottleneck": (
        Model(depth=11, block="bottleneck", shortcut="B-norm", leakiness=0.99),
        16,
        13,
        0,
        0,
    ),
    "imagenet": (Model(layout="imagenet", depth=18), 32, 20, 0, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_accelerated_resnet_computes_the_same_with_the_same_weights(name):
    settings, side, joined, norms, convolutions = MODELS[name]
    keras.utils.set_random_seed(0)
    model = build_resnet(settings, (side, side, 3), 10)
    fast = accelerate(model)
    with_conv = [layer.conv is not None for layer in norms_of(fast)]
    assert [with_conv.count(True), with_conv.count(False)] == [joined, norms]
    assert kinds(fast).count("FastConv2D") == convolutions
    assert not {"BatchNormalization", "FusedBatchNormalization", "ReLU", "LeakyReLU"} & set(
        kinds(fast)
    )
    assert {id(v) for v in fast.variables} == {id(v) for v in model.variables}
    x = random(0, 64, side, side, 3)
    for training in (False, True):
        # An activation that is nearly 0 may fall on the other side of it, in a few of many.
        assert model_errors(fast, model, x, training) < 0.02


def test_a_model_of_ones_own_keeps_what_the_kernels_cannot_do():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("relu"),
            keras.layers.Conv2D(16, 3, padding="same", use_bias=True),
            keras.layers.BatchNormalization(scale=False),
            keras.layers.Conv2D(12, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(16, 3, padding="valid"),
            keras.layers.DepthwiseConv2D(3, padding="same"),
            keras.layers.Conv2D(16, 3, padding="same", dilation_rate=2),
            keras.layers.Conv2D(16, 3, padding="same", groups=2),
            keras.layers.Dropout(0.0),
            keras.layers.Flatten(),
            keras.layers.Dense(5),
        ]
    )
    fast = accelerate(model)
    assert kinds(fast).count("FastConv2D") == 4  # with bias or activation: apart from their norms
    assert [layer.conv for layer in norms_of(fast)] == [None] * 3
    assert kinds(fast).count("Conv2D") == 2, "dilated, and in groups"
    for training in (False, True):
        found, expected = model_values(fast, model, random(0, 8, 16, 16, 3), training)
        for mine, theirs in zip(found, expected, strict=True):
            # the gradient of a bias before a norm is 0, give or take rounding
            np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


def test_the_shortcut_of_a_block_goes_through_its_first_convolution():
    inputs = keras.Input((8, 8, 8))
    x = inputs
    for convolutions in (1, 2):  # around one convolution there is no other one to go through
        y = x
        for _ in range(convolutions):
            y = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(y)
            y = keras.layers.BatchNormalization()(y)
        x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    model = keras.Model(inputs, keras.layers.Add()([x, keras.layers.ReLU()(x)]))
    fast = accelerate(model)
    assert all(layer.conv for layer in norms_of(fast))
    assert [layer.fork for layer in norms_of(fast)] == [False, True, False]
    assert model_errors(fast, model, random(0, 4, 8, 8, 8), training=True) < 1e-5


def norms_of(model):
    return [layer for layer in model.layers if type(layer).__name__ == "FastNorm"]


def test_a_norm_that_two_layers_use_is_computed_once():
    inputs = keras.Input((8, 8, 8))
    norm = keras.layers.BatchNormalization()(inputs)
    model = keras.Model(inputs, keras.layers.Add()([keras.layers.ReLU()(norm), norm]))
    fast = accelerate(model)
    assert len(norms_of(fast)) == 1
    assert kinds(fast).count("Fast") == 2  # ReLU and Add
    assert model_errors(fast, model, random(0, 4, 8, 8, 8), training=True) < 1e-5


def test_models_of_other_precision_and_subclasses_stay_as_they_are():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    own = Own()
    assert accelerate(own) is own
    inputs = keras.Input((8, 8, 8))
    half = keras.Model(
        inputs, keras.layers.Conv2D(8, 3, padding="same", dtype="mixed_bfloat16")(inputs)
    )
    assert kinds(accelerate(half)).count("FastConv2D") == 0


def models():
    small = Model(layout="speedrun", width=8, activation="gelu", norm_scale=False)
    silu = Model(depth=8, width=8, activation="silu", norm_scale=False)
    return {
        "speedrun": lambda: build_speedrun(small, (33, 33, 3), 10, 1),
        "resnet": lambda: build_resnet(silu, (16, 16, 3), 10, 1),
        "v2": lambda: build_resnet(
            Model(depth=8, width=8, version="v2", activation="gelu"), (16, 16, 3), 10
        ),
    }


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("training", [True, False])
def test_a_model_with_silu_or_gelu_computes_the_same(name, training):
    model = models()[name]()
    x = random(0, 4, *model.input_shape[1:])
    assert model_errors(accelerate(model), model, x, training) < 2e-3


def test_the_speedrun_network_uses_a_kernel_for_every_layer_that_has_one():
    fast = accelerate(models()["speedrun"]())
    found = kinds(fast)
    assert [found.count(name) for name in ("SwishNorm", "FastConv2D")] == [6, 6]
    alphas = {layer.alpha for layer in fast.layers if hasattr(layer, "alpha")}
    assert alphas == {SigmoidGelu.ALPHA}
    # pooling, the dense layer and its scale
    assert found.count("Fast") == 6
    assert set(found) == {"InputLayer", "SwishConv2D", "SwishNorm", "FastConv2D", "Fast"}


def test_the_maximum_of_images_of_any_size_is_of_all_pixels():
    inputs = keras.Input((None, None, 8))
    model = keras.Model(inputs, keras.layers.GlobalMaxPooling2D()(inputs))
    for shape in ((2, 4, 9, 8), (2, 5, 5, 8)):
        x = random(0, *shape)
        np.testing.assert_array_equal(accelerate(model)(x), model(x))


def mixed():
    """Layers of Paceline and of TensorFlow in turns, and channels that are no multiple of 8."""
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Conv2D(12, 3, padding="same", use_bias=False)(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    y = keras.layers.Conv2D(12, 3, padding="same", use_bias=False)(x)
    y = keras.layers.BatchNormalization()(keras.layers.DepthwiseConv2D(3, padding="same")(y))
    x = keras.layers.Concatenate()([x, keras.layers.Add()([x, y])])
    x = keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    x = keras.layers.Conv2D(20, 3, strides=2, activation="tanh")(keras.layers.ZeroPadding2D(1)(x))
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize("name", ["mixed", *models()])
@pytest.mark.parametrize("training", [True, False])
def test_images_of_bfloat16_change_a_model_by_their_rounding_only(name, training):
    keras.utils.set_random_seed(0)
    model = mixed() if name == "mixed" else models()[name]()
    fast, x = accelerate(model), random(0, 32, *model.input_shape[1:])
    with ops.within(ops.in_bfloat16, True):
        found, expected = model_values(fast, model, x, training)
    assert not any(np.array_equal(*each) for each in zip(found[:2], expected[:2], strict=True))
    errors = [error(mine, right) for mine, right in zip(found, expected, strict=True)]
    assert np.median(errors) < 0.05
