"""Colours, RandAugment, random erasing and cutmix: each equals NumPy, Pillow or Python's colorsys;
and with all of them, any number of devices gives the same bits."""

import colorsys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps
from test_order_augment import PLAIN, drawn_by_numpy, sha256, to_pixels, train_batch

from helpers import paceline, result_of
from paceline.data.augment.rand_augment import CHANGES, rand_augment
from paceline.data.batches import image_shape
from paceline.data.draws import Draws
from paceline.data.source import Source
from paceline.engines.collective import CollectiveEngine
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Experiment
from paceline.formats.arrays import in_memory
from tiny import EXPERIMENT, build_small_model, build_tiny_core, number

# As in test_order_augment: a new value is a change of every result with such an augmentation.
GOLDEN = {
    "rand-augment": (Augmentation(rand_augment=2), "d76cdaad35a838a0"),
    "random erasing": (Augmentation(random_erasing=0.7), "3b034903ab25dfef"),
}


def photo(seed=0, height=24, width=30, channels=3):
    """Smooth gradients with noise: histograms with gaps, a bright and a dark side."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = 20 + 150 * x / width + 60 * y / height
    noise = random.integers(-15, 16, (height, width, channels))
    tint = np.linspace(0.6, 1.0, channels)
    return np.clip(base[..., None] * tint + noise, 0, 255).astype(np.uint8)


# --- colours


def amounts_by_numpy(name, most, chosen):
    return most * (drawn_by_numpy(name, 5, 0, chosen) / 2**30 - 1)


def test_saturation_moves_colours_from_or_to_grey_as_numpy_does():
    batch, raw, chosen = train_batch(Augmentation(saturation=0.8))
    factors = 1 + amounts_by_numpy("saturation", 0.8, chosen)
    assert factors.max() - factors.min() > 0.5
    x = raw.astype(float)
    grey = (x @ [0.299, 0.587, 0.114])[..., None]
    wanted = np.clip(grey + factors[:, None, None, None] * (x - grey), 0, 255)
    np.testing.assert_allclose((batch.images.numpy() + 1) * 128, wanted, atol=2e-3)


def test_hue_turns_the_colour_circle_as_colorsys_does():
    batch, raw, chosen = train_batch(Augmentation(hue=0.3))
    turns = amounts_by_numpy("hue", 0.3, chosen)

    def turned(pixel, turn):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255))
        return np.array(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)) * 255

    wanted = [
        [[turned(pixel, turn) for pixel in row] for row in picture]
        for picture, turn in zip(raw, turns, strict=True)
    ]
    np.testing.assert_allclose((batch.images.numpy() + 1) * 128, wanted, atol=5e-3)


def test_colours_of_grey_images_are_refused():
    split = in_memory(np.zeros([4, 8, 8, 1], np.uint8), np.zeros(4, int))
    for change in ({"saturation": 0.5}, {"hue": 0.1}):
        with pytest.raises(UserError, match="these images have 1 channels; it is for colors"):
            image_shape(
                Experiment(augment=Augmentation(**change)), Source(split, split, ("a",), (8, 8, 1))
            )


# --- RandAugment


def grey_by_numpy(x):
    return (x @ np.array([19595, 38470, 7471]) + 2**15)[..., None] // 2**16


def smooth_by_numpy(x):
    smooth = x.copy()
    for row in range(1, x.shape[0] - 1):
        for column in range(1, x.shape[1] - 1):
            window = x[row - 1 : row + 2, column - 1 : column + 2].reshape(9, -1).sum(0)
            smooth[row, column] = np.floor((window + 4 * x[row, column]) / 13 + 0.5)
    return smooth


def moved_by_numpy(x, matrix, shift=(0, 0)):
    """matrix: output place from the middle (right, down) -> source place, in parts of 65,536."""
    height, width, _ = x.shape
    result = np.zeros_like(x)
    for row in range(height):
        for column in range(width):
            u, v = column - (width - 1) / 2, row - (height - 1) / 2
            (a, b), (c, d) = matrix
            right = (a * u + b * v) / 65536 + (width - 1) / 2 + shift[0]
            down = (c * u + d * v) / 65536 + (height - 1) / 2 + shift[1]
            from_column, from_row = int(np.floor(right + 0.5)), int(np.floor(down + 0.5))
            if 0 <= from_column < width and 0 <= from_row < height:
                result[row, column] = x[from_row, from_column]
    return result


def equalized_by_numpy(x):
    result = x.copy()
    for channel in range(x.shape[2]):
        values = x[..., channel].ravel()
        counts = np.bincount(values, minlength=256)
        step = (values.size - counts[values.max()]) // 255
        if step:
            below = np.concatenate([[0], np.cumsum(counts)[:-1]])
            result[..., channel] = np.minimum((below + step // 2) // step, 255)[x[..., channel]]
    return result


def blended_by_numpy(x, other, sign, strength):
    factor = 65536 + sign * round(0.9 * strength * 65536)
    exact = (other * (65536 - factor) + x * factor) / 65536
    return np.clip(np.floor(exact + 0.5), 0, 255)


def changed_by_numpy(name, image, sign, strength):
    x, one = image.astype(np.int64), 65536
    slant = sign * round(0.3 * strength * one)
    height, width, _ = x.shape
    far = 150 / 331 * strength
    cosine, sine = (
        round(function(np.radians(30 * strength)) * one) for function in (np.cos, np.sin)
    )
    grey = grey_by_numpy(x)
    least, most = x.min((0, 1)), x.max((0, 1))
    straight = [[one, 0], [0, one]]
    return {
        "identity": lambda: x,
        "auto-contrast": lambda: (x - least) * 255 // (most - least),
        "equalize": lambda: equalized_by_numpy(x),
        "posterize": lambda: x // 2 ** round(4 * strength) * 2 ** round(4 * strength),
        "solarize": lambda: np.where(x < 256 - round(256 * strength), x, 255 - x),
        "colour": lambda: blended_by_numpy(x, grey, sign, strength),
        "contrast": lambda: blended_by_numpy(x, np.floor(grey.mean() + 0.5), sign, strength),
        "brightness": lambda: blended_by_numpy(x, 0, sign, strength),
        "sharpness": lambda: blended_by_numpy(x, smooth_by_numpy(x), sign, strength),
        "shear-x": lambda: moved_by_numpy(x, [[one, slant], [0, one]]),
        "shear-y": lambda: moved_by_numpy(x, [[one, 0], [slant, one]]),
        "translate-x": lambda: moved_by_numpy(x, straight, (sign * round(far * width), 0)),
        "translate-y": lambda: moved_by_numpy(x, straight, (0, sign * round(far * height))),
        "rotate": lambda: moved_by_numpy(x, [[cosine, sign * sine], [-sign * sine, cosine]]),
    }[name]().astype(np.uint8)


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_of_rand_augment_equals_numpy_pixel_for_pixel(name):
    image = photo()
    seen = []
    for sign, strength in [(1, 0.9), (-1, 0.9), (1, 0.35), (1, 0.0)]:
        found = CHANGES[name](tf.constant(image), tf.constant(sign), strength).numpy()
        np.testing.assert_array_equal(found, changed_by_numpy(name, image, sign, strength))
        seen.append((found != image).any())
    without_strength = ("auto-contrast", "equalize")
    assert seen[0] == (name != "identity")
    assert seen[3] == (name in without_strength)


@pytest.mark.parametrize(
    ("name", "by_pillow", "tolerance"),
    [
        ("auto-contrast", ImageOps.autocontrast, 1),
        ("equalize", ImageOps.equalize, 0),
        ("posterize", lambda image: ImageOps.posterize(image, 4), 0),
        ("solarize", lambda image: ImageOps.solarize(image, 26), 0),
        ("colour", lambda image: ImageEnhance.Color(image).enhance(1.9), 1),
        ("contrast", lambda image: ImageEnhance.Contrast(image).enhance(1.9), 1),
        ("brightness", lambda image: ImageEnhance.Brightness(image).enhance(1.9), 1),
        ("sharpness", lambda image: ImageEnhance.Sharpness(image).enhance(1.9), 1),
    ],
)
def test_changes_of_colours_are_those_of_pillow(name, by_pillow, tolerance):
    """Pillow cuts fractions off where we round, so some differ by one."""
    image = photo(1)
    strength = 1.0 if name in ("posterize",) else 0.9 if name == "solarize" else 1.0
    found = CHANGES[name](tf.constant(image), tf.constant(1), strength).numpy().astype(int)
    wanted = np.asarray(by_pillow(Image.fromarray(image))).astype(int)
    assert np.abs(found - wanted).max() <= tolerance


def test_rand_augment_draws_its_changes_by_name_epoch_and_index():
    images = np.stack([photo(seed, 12, 10) for seed in range(40)])
    examples = np.arange(100, 140)
    draws = Draws(7, number(3), tf.constant(examples))
    found = tf.function(lambda: rand_augment(Augmentation(rand_augment=2), images, draws))().numpy()
    names = list(CHANGES)
    for k, image in enumerate(images):
        for turn in range(2):
            change, sign = (
                drawn_by_numpy(f"rand-augment/{turn}{what}", 7, 3, examples)[k]
                for what in ("", "/sign")
            )
            image = changed_by_numpy(names[change % 14], image, 1 - 2 * (sign % 2), 0.9)
        np.testing.assert_array_equal(found[k], image)


@pytest.mark.parametrize("channels", [1, 3])
def test_rand_augment_takes_float_images_and_grey_ones(channels):
    images = np.stack([photo(seed, 9, 9, channels) for seed in range(30)])
    draws = Draws(1, number(0), tf.range(30, dtype=tf.int64))
    settings = Augmentation(rand_augment=1, rand_magnitude=5.0)
    exact = rand_augment(settings, tf.constant(images), draws).numpy()
    rounded = rand_augment(settings, tf.constant(images + np.float32(0.4)), draws).numpy()
    np.testing.assert_array_equal(exact, rounded)
    assert exact.dtype == np.uint8


# --- rectangles


def test_random_erasing_blanks_rectangles_with_its_probability_as_numpy_does():
    batch, _, chosen = train_batch(Augmentation(random_erasing=0.6), shape=(20, 30, 3))
    plain, _, _ = train_batch(PLAIN, shape=(20, 30, 3))
    numbers = {
        part: drawn_by_numpy(f"random-erasing/{part}", 5, 0, chosen)
        for part in ("chance", "share", "aspect", "row", "column")
    }
    blanked = 0
    for k, (picture, without) in enumerate(
        zip(batch.images.numpy(), plain.images.numpy(), strict=True)
    ):
        own = {part: values[k] for part, values in numbers.items()}
        blank = np.zeros((20, 30, 1), bool)
        if own["chance"] / 2**31 < 0.6:
            slant = own["aspect"] / 2**31
            stretch = 1 + abs(2 * slant - 1) * (10 / 3 - 1)
            aspect = stretch if slant < 0.5 else 1 / stretch
            area = (0.02 + own["share"] / 2**31 * 0.31) * 600
            tall = int(np.clip(np.rint((area / aspect) ** 0.5), 1, 20))
            wide = int(np.clip(np.rint((area * aspect) ** 0.5), 1, 30))
            top, left = own["row"] % (21 - tall), own["column"] % (31 - wide)
            blank[top : top + tall, left : left + wide] = True
            blanked += 1
        np.testing.assert_array_equal(picture, np.where(blank, 0, without))
    assert 2 <= blanked <= 7


def test_cutmix_replaces_a_rectangle_and_mixes_the_targets_by_its_area():
    shape = (16, 20, 3)
    mixed, _, chosen = train_batch(Augmentation(cutmix=1.0), shape=shape)
    plain, _, _ = train_batch(PLAIN, shape=shape)
    x, opposite = plain.images.numpy(), plain.images.numpy()[::-1]
    own, other = plain.targets.numpy(), plain.targets.numpy()[::-1]
    rows, columns = (drawn_by_numpy(f"cutmix/{axis}", 5, 0, chosen) for axis in ("row", "column"))
    shares = []
    for k, picture in enumerate(mixed.images.numpy()):
        taken = (picture == opposite[k]).all(-1) & (picture != x[k]).any(-1)
        if taken.any():
            ys, xs = np.where(taken)
            box = np.zeros_like(taken)
            box[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1] = True
            np.testing.assert_array_equal(taken, box)
            assert box[rows[k] % 16, columns[k] % 20] or box.sum() < 4
        np.testing.assert_array_equal(picture, np.where(taken[..., None], opposite[k], x[k]))
        share = taken.mean()
        shares.append(share)
        wanted = (1 - share) * own[k] + share * other[k]
        np.testing.assert_allclose(mixed.targets.numpy()[k], wanted, atol=1e-6)
    assert len(set(shares)) > 4
    assert 0.05 < np.mean(shares) < 0.6


def test_with_mixup_and_cutmix_each_example_gets_one_of_them():
    both, _, chosen = train_batch(Augmentation(mixup=0.4, cutmix=1.0))
    mixup, _, _ = train_batch(Augmentation(mixup=0.4))
    cutmix, _, _ = train_batch(Augmentation(cutmix=1.0))
    by_mixup = drawn_by_numpy("mixup or cutmix", 5, 0, chosen) % 2 == 0
    assert 1 <= by_mixup.sum() <= 7
    for k, which in enumerate(by_mixup):
        wanted = mixup if which else cutmix
        np.testing.assert_array_equal(both.images[k], wanted.images[k])
        np.testing.assert_array_equal(both.targets[k], wanted.targets[k])
    np.testing.assert_allclose(both.targets.numpy().sum(1), 1, rtol=1e-6)


def test_cutmix_differs_by_step_and_replica_and_repeats_exactly():
    digests = [
        sha256(train_batch(Augmentation(cutmix=1.0), step, replica)[0].targets.numpy())
        for step, replica in [(0, 0), (0, 0), (0, 1), (1, 0)]
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


# --- together


@pytest.mark.parametrize("feature", GOLDEN)
def test_a_golden_digest_pins_the_new_augmentations(feature):
    """Whole numbers only, so that the digest is the same on every kind of CPU."""
    settings, golden = GOLDEN[feature]
    batch, _, _ = train_batch(settings, step=12_345, shape=(32, 32, 3), size=50, seed=7)
    assert sha256(to_pixels(batch.images))[:16] == golden


ALL = Augmentation(
    padding=1,
    flip=True,
    saturation=0.4,
    hue=0.1,
    rand_augment=2,
    random_erasing=0.5,
    cutmix=1.0,
    mixup=0.2,
)


@pytest.mark.long  # because of the graph of RandAugment
def test_with_all_augmentations_two_devices_give_the_bits_of_one(mirrored):
    experiment = replace(EXPERIMENT, augment=ALL, replicas=2, global_batch_size=8)
    core, digests = build_tiny_core(experiment, build_small_model()), set()
    for count in (1, 2):
        engine = CollectiveEngine(core, mirrored(count), side_by_side=1)
        engine.load(core.initial_state())
        engine.advance(0, 2)
        digests.add(engine.state().sha256())
    assert len(digests) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "place",
    [
        ("--workers", "2"),
        ("--workers", "3"),
        ("--workers", "2", "--ps", "2"),
        ("--on", "ray", "--workers", "2"),
    ],
)
def test_with_all_augmentations_and_class_weights_every_place_gives_the_same_bits(
    place: tuple[str, ...], alone: Path, tmp_path: Path
) -> None:
    ended = paceline(*FLAGS, "--run-dir", "run", *place, cwd=tmp_path, timeout_s=240)
    assert ended.code == 0, ended.err
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(alone)["state_sha256"]


FLAGS = (
    *("train", "smoke", "--steps", "4", "--augment.saturation", "0.4", "--augment.hue", "0.1"),
    *("--augment.rand-augment", "2", "--augment.random-erasing", "0.5", "--augment.cutmix", "1"),
    *("--augment.mixup", "0.2", "--loss.class-weights", "balanced", "--scaling.mean", "auto"),
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training in one process."""
    folder = tmp_path_factory.mktemp("alone")
    assert paceline(*FLAGS, "--run-dir", "run", cwd=folder).code == 0
    return folder / "run"
