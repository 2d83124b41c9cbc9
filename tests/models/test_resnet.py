"""The ResNet family: sizes as in the papers, shortcuts as described, names that depend on nothing
else."""

import math

import keras
import numpy as np
import pytest

from paceline.experiment.experiment import Model
from paceline.maths.template import build_template
from paceline.models.layers import FusedBatchNormalization
from paceline.models.resnet import build_resnet

SHAPE = (32, 32, 3)


def resnet(depth=8, width=4, classes=10, **options):
    return build_resnet(Model(depth=depth, width=width, **options), SHAPE, classes)


@pytest.mark.parametrize(
    ("model", "count"),
    [  # millions in the tables of He et al. 2015 and, the last, 2016
        ({"depth": 20}, 269_722),  # 0.27
        ({"depth": 56}, 853_018),  # 0.85
        ({"depth": 110}, 1_727_962),  # 1.7
        ({"depth": 164, "block": "bottleneck", "version": "v2", "shortcut": "B"}, 1_703_258),  # 1.7
    ],
)
def test_parameter_counts_are_those_of_the_paper(model, count):
    trainable = build_resnet(Model(**model), SHAPE, 10).trainable_variables
    assert sum(math.prod(variable.shape) for variable in trainable) == count


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    ("shortcut", "projected"),
    [("A", ""), ("A-pool", ""), ("B", "23"), ("B-norm", "23"), ("B-first", "123")],
)
def test_shortcuts_are_projected_where_their_kind_says(version, shortcut, projected):
    names = {layer.name for layer in resnet(14, version=version, shortcut=shortcut).layers}
    convolutions = {f"stage{stage}_block1_shortcut_conv" for stage in projected}
    has_norm = version == "v1" and shortcut not in ("A", "A-pool", "B")
    norms = {name.replace("conv", "norm") for name in convolutions if has_norm}
    assert {name for name in names if "shortcut_conv" in name} == convolutions
    assert {name for name in names if "shortcut_norm" in name} == norms


def features(model, x):
    return keras.Model(model.input, model.get_layer("head_mean").input)(x).numpy()


def with_dead_blocks(**options):
    """A model whose blocks add nothing: what comes out went through the shortcuts."""
    keras.utils.set_random_seed(0)
    model = resnet(norm_epsilon=1e-5, **options)
    for layer in model.layers:
        if (
            isinstance(layer, keras.layers.Conv2D)
            and layer.name.startswith("stage")
            and "shortcut" not in layer.name
        ):
            layer.kernel.assign(keras.ops.zeros_like(layer.kernel))
    return model


def relu(x):
    return np.maximum(x, 0)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("shortcut", ["A", "A-pool"])
def test_shortcuts_of_type_a_take_pixels_or_means_and_pad_channels_on_both_sides(version, shortcut):
    model = with_dead_blocks(version=version, shortcut=shortcut)
    x = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)
    stem = model.get_layer("stem_conv")(x).numpy()
    scale = 1 / np.sqrt(1 + 1e-5)
    start = relu(stem * scale)  # v2: the first block shares its activation with the shortcut
    small = start[:, ::4, ::4] if shortcut == "A" else start.reshape(2, 8, 4, 8, 4, 4).mean((2, 4))
    wanted = np.pad(small, [(0, 0)] * 3 + [(6, 6)])
    wanted = relu(wanted * scale) if version == "v2" else wanted
    np.testing.assert_allclose(features(model, x), wanted, rtol=1e-4, atol=1e-6)


def test_shortcuts_of_type_b_project_every_second_pixel():
    model = with_dead_blocks(shortcut="B")
    x = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)
    y = relu(model.get_layer("stem_conv")(x).numpy() / np.sqrt(1 + 1e-5))
    for stage in (2, 3):
        kernel = np.asarray(model.get_layer(f"stage{stage}_block1_shortcut_conv").kernel)
        assert kernel.shape[:2] == (1, 1)
        y = relu(y[:, ::2, ::2] @ kernel[0, 0])
    np.testing.assert_allclose(features(model, x), y, rtol=1e-4, atol=1e-6)


def test_the_activation_leaks_when_asked():
    x = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)
    assert features(resnet(), x).min() == 0
    assert features(resnet(leakiness=0.1), x).min() < 0


def test_names_do_not_depend_on_what_else_the_process_built():
    first = build_template(resnet(version="v2", shortcut="B"))
    for _ in range(2):
        resnet()
        keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()]
        )
    second = build_template(resnet(version="v2", shortcut="B"))
    assert (first.params, first.stats) == (second.params, second.stats)
    names = [name for name, _ in first.params + first.stats]
    assert len(set(names)) == len(names)
    assert {"stem_conv/kernel", "stage1_block1_1_norm/gamma", "head_dense/bias"} <= set(names)


@pytest.mark.parametrize(
    "options",
    [{"version": "v1", "shortcut": "A"}, {"version": "v2", "shortcut": "B-norm", "leakiness": 0.1}],
)
def test_a_model_saved_as_keras_gives_the_same_outputs_when_loaded(tmp_path, options):
    model = resnet(**options)
    for variable in model.variables:
        variable.assign(
            variable
            + 0.01 * np.random.default_rng(1).normal(size=variable.shape).astype(np.float32) ** 2
        )
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x).numpy(), model(x).numpy())
    assert any(isinstance(layer, FusedBatchNormalization) for layer in loaded.layers)


def test_cifar_weights_keep_their_names_order_and_shapes():
    template = build_template(build_resnet(Model(depth=8), (32, 32, 3), 10))
    expected = [("stem_conv/kernel", (3, 3, 3, 16)), *norm("stem_norm", 16)]
    for stage, (before, width) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
        block = f"stage{stage}_block1"
        expected += [
            (f"{block}_conv1/kernel", (3, 3, before, width)),
            *norm(f"{block}_1_norm", width),
        ]
        expected += [
            (f"{block}_conv2/kernel", (3, 3, width, width)),
            *norm(f"{block}_norm2", width),
        ]
    assert list(template.params) == [
        *expected,
        ("head_dense/kernel", (64, 10)),
        ("head_dense/bias", (10,)),
    ]


def norm(name, width):
    return [(f"{name}/gamma", (width,)), (f"{name}/beta", (width,))]
