"""The ResNet family: sizes as in the papers, shortcuts as described, names and first weights that
depend on nothing else."""

import hashlib
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline import build
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment, Model
from paceline.job import Job
from paceline.maths.template import build_template
from paceline.models.batch_norm import FusedBatchNormalization
from paceline.models.build import build_model
from paceline.models.resnet import build_resnet
from paceline.models.variable_names import relative_names

SHAPE = (32, 32, 3)


def resnet(depth=8, width=4, classes=10, **options):
    return build_resnet(Model(depth=depth, width=width, **options), SHAPE, classes)


# --- sizes


def count_by_formula(n, w=16, classes=10):
    """v1, basic blocks, option A: He et al. 2015, table in section 4.2. Convolutions without bias,
    two numbers per BatchNorm channel."""
    stem = 27 * w + 2 * w
    first = 2 * n * (9 * w * w + 2 * w)
    second = 9 * w * 2 * w + (2 * n - 1) * 9 * (2 * w) ** 2 + 2 * n * 2 * (2 * w)
    third = 9 * 2 * w * 4 * w + (2 * n - 1) * 9 * (4 * w) ** 2 + 2 * n * 2 * (4 * w)
    return stem + first + second + third + 4 * w * classes + classes


@pytest.mark.parametrize(
    ("depth", "exact", "paper"),
    [
        (20, 269_722, "0.27"),
        (32, 464_154, "0.46"),
        (44, 658_586, "0.66"),
        (56, 853_018, "0.85"),
        (110, 1_727_962, "1.7"),
    ],
)
def test_parameter_counts_are_those_of_the_paper(depth, exact, paper):
    assert count_by_formula((depth - 2) // 6) == exact
    assert f"{exact / 1e6:.{len(paper) - 2}f}" == paper
    trainable = build_resnet(Model(depth=depth), SHAPE, 10).trainable_variables
    assert sum(int(np.prod(v.shape)) for v in trainable) == exact


def count_by_walking(n, version, block, shortcut, w, classes=10):
    """Once more, block by block, for the variants."""
    total, channels = 27 * w + (2 * w if version == "v1" else 0), w
    for stage in range(3):
        f = w * 2**stage
        for i in range(n):
            shapes = (
                [(3, channels, f), (3, f, f)]
                if block == "basic"
                else [(1, channels, f), (3, f, f), (1, f, 4 * f)]
            )
            for k, a, b in shapes:
                total += k * k * a * b + 2 * (b if version == "v1" else a)
            out = shapes[-1][2]
            changes = (
                out != channels
                or (stage > 0 and i == 0)
                or (stage == i == 0 and shortcut == "B-first")
            )
            if changes and shortcut.startswith("B"):
                total += channels * out + (2 * out if shortcut != "B" and version == "v1" else 0)
            channels = out
    return total + (2 * channels if version == "v2" else 0) + channels * classes + classes


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("shortcut", ["A", "A-pool", "B", "B-norm", "B-first"])
@pytest.mark.parametrize(("block", "depth"), [("basic", 14), ("bottleneck", 20)])
def test_every_variant_has_the_parameters_that_its_blocks_add_up_to(
    version, shortcut, block, depth
):
    model = resnet(depth, version=version, block=block, shortcut=shortcut)
    assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == count_by_walking(
        2, version, block, shortcut, 4
    )
    assert model.output_shape == (None, 10)


@pytest.mark.parametrize(
    ("depth", "block"), [(8, "basic"), (20, "basic"), (11, "bottleneck"), (20, "bottleneck")]
)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_depth_counts_the_layers_with_weights_on_the_main_path(depth, block, version):
    model = resnet(depth, version=version, block=block, shortcut="B-norm")
    main = [
        layer
        for layer in model.layers
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense))
        and "shortcut" not in layer.name
    ]
    assert len(main) == depth
    sides = {layer.output.shape[1] for layer in model.layers if isinstance(layer, keras.layers.Add)}
    assert sides == {32, 16, 8}


# --- shortcuts


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


@pytest.mark.parametrize(
    ("initializer", "deviation"),
    [
        ("he_fan_out", np.sqrt(2 / (9 * 64))),
        ("he_normal", np.sqrt(2 / (9 * 32))),
        ("glorot_uniform", np.sqrt(2 / (9 * 96))),
    ],
)
def test_kernels_begin_with_the_deviation_of_their_initializer(initializer, deviation):
    keras.utils.set_random_seed(0)
    model = resnet(width=16, initializer=initializer)
    kernel = np.asarray(model.get_layer("stage3_block1_conv1").kernel)
    assert kernel.shape == (3, 3, 32, 64)
    assert kernel.std() == pytest.approx(deviation, rel=0.03)
    assert abs(kernel.mean()) < deviation / 50


# --- names and seeds


def digest(model):
    return hashlib.sha256(build_template(model).initial()["params"].data).hexdigest()


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
    "layer",
    ["Conv2D", "DepthwiseConv2D", "Conv2DTranspose", "SeparableConv2D", "BatchNormalization"],
)
def test_automatic_names_of_kerass_layers_are_counted_within_the_model(layer):
    def names():
        options = {"DepthwiseConv2D": (3,), "BatchNormalization": ()}.get(layer, (4, 3))
        kind = getattr(keras.layers, layer)
        model = keras.Sequential([keras.Input((8, 8, 4)), kind(*options), kind(*options)])
        return relative_names(model, model.variables)

    first = names()
    assert names() == first
    assert len({name.split("/")[1] for name in first}) == 2


def test_names_do_not_depend_on_which_layers_are_frozen():
    def names(frozen):
        layers = [keras.layers.Dense(3, trainable=k not in frozen) for k in range(3)]
        template = build_template(keras.Sequential([keras.Input((4,)), *layers]))
        return sorted(template.params + template.stats)

    assert names({0}) == names({1}) == names(set())


def test_the_seed_alone_decides_the_first_weights():
    experiment = Experiment(model=Model(depth=8, width=4), seed=3)
    first = digest(build_model(experiment, SHAPE, 10))
    keras.layers.Dense(5).build((None, 5))
    assert digest(build_model(experiment, SHAPE, 10)) == first
    assert digest(build_model(replace(experiment, seed=4), SHAPE, 10)) != first


# --- saving


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


# --- BatchNorm


def both_norms(momentum=0.9):
    """Ours and Keras's, with the same odd weights."""
    random, norms = np.random.default_rng(0), []
    values = [random.uniform(0.5, 2, 5).astype(np.float32) for _ in range(4)]
    for kind in (FusedBatchNormalization, keras.layers.BatchNormalization):
        norm = kind(momentum=momentum, epsilon=1e-3)
        norm.build((None, 6, 6, 5))
        for variable, value in zip(
            (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance), values, strict=True
        ):
            variable.assign(value)
        norms.append(norm)
    x = tf.constant(random.normal(2, 3, (4, 6, 6, 5)).astype(np.float32))
    return *norms, x


def test_fused_batchnorm_equals_kerass_in_inference():
    ours, theirs, x = both_norms()
    before = np.asarray(ours.moving_mean)
    np.testing.assert_allclose(
        ours(x, training=False), theirs(x, training=False), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(ours.moving_mean, before)


def test_fused_batchnorm_equals_kerass_in_training_with_an_unbiased_moving_variance():
    ours, theirs, x = both_norms()
    old = np.asarray(ours.moving_variance)
    np.testing.assert_allclose(
        ours(x, training=True), theirs(x, training=True), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(ours.moving_mean, theirs.moving_mean, rtol=1e-5)
    unbiased = x.numpy().astype(float).var((0, 1, 2), ddof=1)
    np.testing.assert_allclose(ours.moving_variance, 0.9 * old + 0.1 * unbiased, rtol=1e-5)


def test_gradients_of_fused_batchnorm_equal_those_of_kerass():
    ours, theirs, x = both_norms()
    direction = tf.constant(np.random.default_rng(1).normal(size=x.shape).astype(np.float32))
    gradients = []
    for norm in (ours, theirs):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(norm(x, training=True) * direction)
        gradients.append(tape.gradient(value, [x, norm.gamma.value, norm.beta.value]))
    for own, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-3, atol=1e-4)


def test_a_frozen_fused_batchnorm_keeps_its_statistics():
    ours, theirs, x = both_norms()
    ours.trainable = theirs.trainable = False
    before = np.asarray(ours.moving_mean)
    np.testing.assert_allclose(
        ours(x, training=True), theirs(x, training=True), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(ours.moving_mean, before)


# --- a person's own model


def own_model(tmp_path, text):
    (tmp_path / "own_model.py").write_text("import keras\n" + text)
    return Experiment(model=Model(build=f"{tmp_path / 'own_model.py'}:make"))


def test_a_persons_own_function_builds_the_model(tmp_path):
    text = (
        "def make(image_shape, num_classes):\n"
        "    layers = [keras.layers.Flatten(), keras.layers.Dense(num_classes)]\n"
        "    return keras.Sequential(layers)\n"
    )
    model = build_model(own_model(tmp_path, text), (4, 4, 3), 7)
    assert model.built
    assert model(np.zeros((2, 4, 4, 3), np.float32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def make(image_shape, num_classes):\n    return 3\n",
            "returned int; it must return a keras.Model",
        ),
        (
            "def make(image_shape, num_classes):\n"
            "    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])\n",
            r"gives outputs \(None, 3\); it must give \(None, 7\)",
        ),
    ],
)
def test_a_function_that_returns_something_else_is_a_clear_error(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        build_model(own_model(tmp_path, text), (4, 4, 3), 7)


@pytest.mark.parametrize(
    "own", [Model(width=4, shortcut="B"), Model(width=7, layout="imagenet", depth=18)]
)
def test_widths_at_which_onednn_writes_beyond_its_memory_are_refused(own):
    with pytest.raises(
        UserError,
        match=f"model.width is {own.width}; with projection shortcuts it must be 8 or more",
    ):
        build.build_core(Job(Experiment(model=own)))
