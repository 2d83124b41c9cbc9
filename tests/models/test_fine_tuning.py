"""Fine-tuning: models of keras.applications, their weights and their preprocessing, and layers that
stay as they are.

There is no network here: the weights are random, in files as Keras expects them in its cache.
"""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from urllib.error import URLError

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.legacy.saving.legacy_h5_format import save_weights_to_hdf5_group
from keras.src.utils import file_utils

from image_folders import write_images
from in_process import paceline_here
from paceline.build import build_model
from paceline.data.images import scale
from paceline.engines.collective import CollectiveEngine
from paceline.errors import UserError
from paceline.experiment.experiment import Average, Data, Experiment, Model, Sync
from paceline.experiment.recipes.table import get_recipe
from paceline.formats.encoded.prepare import evaluation_images
from paceline.maths.initial_values import start_from
from paceline.maths.replica import Step
from paceline.maths.state import State
from paceline.maths.template import build_template
from paceline.models.fine_tuning import (
    build_application,
    own_scaling,
    read_application,
    scaling_warning,
)
from paceline.run_folder.given_weights import newest_variables, read_weights
from tiny import EXPERIMENT, build_tiny_core, number

APPLICATIONS = [name for name in dir(keras.applications) if name[0].isupper()]
FILE = "mobilenet_1_0_224_tf_no_top.h5"
"""What Keras calls the weights of MobileNet without its head."""
KERAS_HOME = "keras-home"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like ~/.keras with weights of MobileNet, and these in NumPy."""
    folder = tmp_path_factory.mktemp(KERAS_HOME)
    (folder / "models").mkdir()
    keras.utils.set_random_seed(77)
    model = keras.applications.MobileNet(include_top=False, weights=None)
    random = np.random.default_rng(1)
    weights = [
        np.abs(value + random.normal(0, 0.05, value.shape))
        if "variance" in variable.path
        else value + random.normal(0, 0.05, value.shape)
        for variable, value in zip(model.weights, model.get_weights(), strict=True)
    ]
    model.set_weights(weights)
    with h5py.File(folder / "models" / FILE, "w") as file:
        save_weights_to_hdf5_group(file, model)
    np.savez(folder / "weights.npz", *weights)
    return folder


@pytest.fixture
def cached(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keras's cache is that folder, and nothing can be downloaded."""
    monkeypatch.setattr(file_utils.config, "keras_home", lambda: str(home))
    monkeypatch.setattr(file_utils, "urlretrieve", no_network)
    return home


def no_network(*arguments, **options):
    raise URLError("no network")


# --- preprocessing


def pixels():
    """All values in all channels, and a smooth picture."""
    random = np.random.default_rng(3)
    noise = random.integers(0, 256, (3, 16, 16, 3))
    ramp = np.arange(256).reshape(1, 16, 16, 1) * [1.0, 0.5, 0.25]
    return np.concatenate([noise, ramp]).astype(np.uint8)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_scaling_is_the_applications_own_preprocess_input(name):
    prepare = importlib.import_module(getattr(keras.applications, name).__module__).preprocess_input
    wanted = np.asarray(prepare(pixels().astype(np.float32)))
    found = scale(own_scaling(name), tf.constant(pixels())).numpy()
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-5)


def started(spec, template):
    return start_from(spec, read_weights(spec), template, State(0, template.initial()))


def test_another_scaling_than_the_applications_is_noted():
    model = Model(init_from="keras:MobileNet")
    assert "--scaling.method application" in scaling_warning(Experiment(model=model))
    own = own_scaling("MobileNet")
    assert scaling_warning(Experiment(model=model, scaling=own)) == ""
    assert scaling_warning(Experiment()) == ""


# --- weights


@pytest.mark.slow
def test_a_warm_start_takes_all_weights_but_the_head(cached: Path) -> None:
    experiment = replace(EXPERIMENT, model=Model(init_from="keras:MobileNet"))
    template = build_template(build_model(experiment, (32, 32, 3), 7))
    state, new = start_from(
        "", read_weights("keras:MobileNet"), template, State(0, template.initial())
    )
    assert new == ["head_dense/kernel", "head_dense/bias"]
    template.assign(state.vectors["params"], state.vectors["stats"])
    with np.load(cached / "weights.npz") as file:
        wanted = [file[name] for name in file.files]
    found = template.model.get_weights()
    assert len(found) == len(wanted) + 2 == 137
    for value, right in zip(found[:-2], wanted, strict=True):
        np.testing.assert_array_equal(value, np.float32(right))
    kernel = found[-2]
    assert kernel.shape == (1024, 7)
    again = build_application(experiment.model, (32, 32, 3), 7, experiment.seed)
    np.testing.assert_array_equal(kernel, again.get_weights()[-2])


def test_weights_of_a_file_need_no_cache(home: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(file_utils.config, "keras_home", lambda: str(tmp_path))
    weights = read_application(f"keras:MobileNet:{home / 'models' / FILE}")
    with np.load(home / "weights.npz") as file:
        np.testing.assert_array_equal(weights["conv1/kernel"], np.float32(file["arr_0"]))
    (tmp_path / "other.h5").write_bytes(b"no weights")
    with pytest.raises(UserError, match=r"other.h5 does not have the weights of MobileNet"):
        read_application(f"keras:MobileNet:{tmp_path}/other.h5")
    with pytest.raises(UserError, match=r"keras:MobileNet: there is no file"):
        read_application(f"keras:MobileNet:{tmp_path}/none.h5")


def test_without_network_one_line_says_which_file_to_put_where(cached: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_application("keras:VGG16")
    text = str(caught.value)
    assert "Keras cannot download the weights (URL fetch failure on https://" in text
    assert "vgg16_weights_tf_dim_ordering_tf_kernels_notop.h5" in text
    assert "put the file into its cache (~/.keras/models)" in text
    assert "keras:VGG16:FILE" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model.build", "keras:resnet5O"), "did you mean 'ResNet50'?"),
        (("--model.init-from", "keras:Foo"), "there is no keras.applications.Foo; known: "),
        (("--scaling.method", "application"), "the model is not from keras.applications"),
        (("--model.build", "keras:VGG16", "--model.outputs", "probabilities"), "head of logits"),
        (("--model.build", "keras:VGG16"), "keras:VGG16 cannot be built: Input size must be"),
        (("--model.freeze", "stemm"), "name matches or starts with stemm; did you mean 'stem_"),
        (("--model.freeze", "stage2..stem"), "stage2 comes after stem in the model"),
        (("--model.freeze", "*"), "model.freeze * leaves nothing to train"),
    ],
)
def test_mistakes_are_one_line(flags: tuple[str, ...], message: str, tmp_path: Path) -> None:
    small = ("--augment.crop-size", "16") if "keras:VGG16" in flags else ()
    ended = paceline_here("train", "smoke", *flags, *small, cwd=tmp_path)
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1


# --- frozen layers

FROZEN = replace(
    EXPERIMENT,
    replicas=3,
    global_batch_size=12,
    model=Model(depth=8, width=8, freeze=("stem..stage2",)),
)


def test_a_range_freezes_the_layers_from_its_first_to_its_last():
    model = build_model(FROZEN, (8, 8, 3), 10)
    trained = {variable.path.split("/")[0] for variable in model.trainable_variables}
    assert trained == {
        *("stage3_block1_conv1", "stage3_block1_1_norm", "stage3_block1_conv2"),
        *("stage3_block1_norm2", "head_dense"),
    }
    alone = replace(FROZEN, model=replace(FROZEN.model, freeze=("backbone",)))
    head = build_model(alone, (8, 8, 3), 10)
    assert [v.path for v in head.trainable_variables] == ["head_dense/kernel", "head_dense/bias"]
    some = replace(FROZEN, model=replace(FROZEN.model, freeze=("*_norm*", "stage1")))
    names = [v.path for v in build_model(some, (8, 8, 3), 10).trainable_variables]
    assert "stage2_block1_conv1/kernel" in names
    assert not [name for name in names if "norm" in name or name.startswith("stage1")]


def test_frozen_layers_normalise_by_their_stored_statistics():
    experiment = replace(FROZEN, model=replace(FROZEN.model, freeze=("backbone",)))
    template = build_template(build_model(experiment, (8, 8, 3), 10))
    vectors = {name: tf.constant(vector) for name, vector in template.initial().items()}
    images = tf.random.stateless_normal([4, 8, 8, 3], [1, 2])
    outputs = [
        template.call(vectors["params"], vectors["stats"], images, training)[0].numpy()
        for training in (True, False)
    ]
    np.testing.assert_array_equal(*outputs)
    assert template.moving_size() == 0


def train_on(core, strategy, steps=2):
    engine = CollectiveEngine(core, strategy, side_by_side=1)
    engine.load(core.initial_state())
    engine.advance(0, steps)
    return engine.state()


@pytest.mark.parametrize(
    "sync", [Sync(), pytest.param(Sync(method="weights", every=2), marks=pytest.mark.long)]
)
def test_frozen_weights_do_not_move_and_devices_agree(sync, mirrored):
    """With three replicas, the mean of equal numbers would differ from them."""
    core = build_tiny_core(replace(FROZEN, sync=sync, average=Average(0.9)))
    first, template = core.initial_state(), core.template
    states = [train_on(core, mirrored(count)) for count in (1, 2)]
    assert states[0].sha256() == states[1].sha256()
    mask = template.fixed_mask()
    assert 0 < mask.sum() == len(mask) - template.moving_size()
    for vector in ("stats", "ema_stats"):
        before, after = first.vectors[vector], states[0].vectors[vector]
        np.testing.assert_array_equal(after[mask], before[mask])
        assert (after[~mask] != before[~mask]).all()
    assert (states[0].vectors["params"] != first.vectors["params"]).mean() > 0.9
    assert len(first.vectors["momentum"]) == len(first.vectors["params"])


def test_own_kernels_compute_the_gradients_through_frozen_norms():
    frozen = replace(FROZEN, model=replace(FROZEN.model, freeze=("*_norm*",)))

    def gradient(kernels):
        core = build_tiny_core(replace(frozen, kernels=kernels))
        vectors = core.initial_state().vectors
        state = (tf.constant(vectors["params"]), tf.constant(vectors["stats"]))
        vector = core.replica_vector(*state, Step(number(0), number(0), tf.zeros([2]))).numpy()
        return vector[: len(vectors["params"])]

    own, usual = gradient("own"), gradient("tensorflow")
    assert np.abs(usual).max() > 1e-3
    np.testing.assert_allclose(own, usual, rtol=1e-2, atol=1e-4 * np.abs(usual).max())


def test_a_normalization_layer_of_keras_is_kept_as_it_is(mirrored):
    """EfficientNet has one, with a count that no step reads."""
    layer = keras.layers.Normalization(mean=None)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Flatten()(layer(inputs))
    core = build_tiny_core(FROZEN, keras.Model(inputs, keras.layers.Dense(10)(x)))
    state = train_on(core, mirrored(1))
    np.testing.assert_array_equal(state.vectors["stats"], core.initial_state().vectors["stats"])
    assert core.template.moving_size() == 0


def test_frozen_weights_can_come_from_a_run_that_trained_them(uninterrupted: Path) -> None:
    smoke = get_recipe("smoke")
    experiment = replace(smoke, model=replace(smoke.model, freeze=("stem..stage2",)))
    template = build_template(build_model(experiment, (32, 32, 3), 10))
    state, new = start_from(
        "", read_weights(str(uninterrupted)), template, State(0, template.initial())
    )
    assert new == []
    assert "stem_conv/kernel" in template.fixed
    template.assign(state.vectors["params"], state.vectors["stats"])
    known = newest_variables(uninterrupted / "checkpoints", ("params", "stats"))
    for variable in template.model.weights:
        np.testing.assert_array_equal(variable.numpy(), known[variable.path])


# --- all together


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures as files, of two classes and two splits."""
    return write_images(tmp_path_factory.mktemp("photos"), 12, classes=("dark", "light"))


SMALL = (
    *("--data.image-size", "32", "--model.init-from", "keras:MobileNet", "--steps", "2"),
    *("--global-batch-size", "8", "--run-dir", "run"),
)


@pytest.mark.long
def test_a_fine_tuned_run_needs_no_cache_and_its_export_gives_its_predictions(
    cached: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = paceline_here("train", "finetune", "--data.dir", str(photos), *SMALL, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "started from keras:MobileNet; new are head_dense/kernel, head_dense/bias" in ended.out
    assert "2,050 parameters, 3,228,864 more frozen" in ended.out
    assert "another scaling" not in ended.out
    facts = json.loads((tmp_path / "run/config.json").read_text())["data"]
    assert facts["scaling"] == "mean_std"
    assert facts["mean"] == facts["std"] == [127.5] * 3
    monkeypatch.setattr(file_utils.config, "keras_home", lambda: "/nowhere")
    target = str(tmp_path / "model.keras")
    export = paceline_here("export", "run", target, "--to", "keras", cwd=tmp_path)
    assert export.code == 0, export.err
    file = photos / "val/light/light-val-0.jpg"
    predicted = paceline_here("predict", "run", str(file), "--json", cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    experiment = Experiment(data=Data(image_size=32))
    files = tf.constant([file.read_bytes()])
    seen = evaluation_images(experiment, files)
    exported = keras.saving.load_model(target)(seen).numpy()[0]
    (best,) = json.loads(predicted.out)["top"][:1]
    assert exported.max() == pytest.approx(best["probability"], abs=1e-5)
