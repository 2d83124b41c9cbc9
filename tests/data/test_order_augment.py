"""What is seen: order and slices cover the data, augmentation does what NumPy does, and golden
digests pin both.

The random numbers are computed here once more, in NumPy, from the description in `augment`.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.augment import crop as augment
from paceline.data.batches import build_eval_batches, build_train_batches
from paceline.data.draws import Draws, initializer_seed, op_key
from paceline.data.order import slice_indices
from paceline.experiment.experiment import Augmentation, Experiment, Loss, Scaling
from paceline.formats.arrays import in_memory
from paceline.maths.losses import build_targets
from tiny import number

# To renew a golden value after a wanted change of the order or the augmentation (it changes every
# result of the program: say so in CHANGELOG.md), run this file and copy the digest from the
# failure.
GOLDEN_ORDER = "29f9d8dce13fcc6535feab1a058128fe17a5bf51231435d68cf7e0dc45ca0389"
GOLDEN_FEATURES = {
    "crop": (Augmentation(padding=4), "26e351f3d90268b6"),
    "flip": (Augmentation(flip=True), "ca36930e1f142d63"),
    "alternating flip": (Augmentation(flip=True, alternate_flip=True), "3b26c9188f6c7a6b"),
    "crop and flip": (Augmentation(padding=4, flip=True), "2d0cd71e2b827619"),
    "cutout": (Augmentation(cutout=9), "c7f4f6354000d465"),
    "mixup": (Augmentation(mixup=0.4), "4b19473a05fa4ed4"),
}
GOLDEN_KEYS = [
    [-2540988603501221065, 5815074143311781760],
    [6460128525710557222, -5134544645702925600],
]
GOLDEN_SEEDS = [1620184202, 976189129]

PLAIN = Augmentation()
UNIT = Scaling("unit")


def indices(step, replica, size, replicas, replica_batch_size, seed=0):
    experiment = Experiment(
        global_batch_size=replicas * replica_batch_size, replicas=replicas, seed=seed
    )
    return slice_indices(experiment, size, number(step), number(replica))[1].numpy()


def global_batches(steps, size, replicas, batch_size, seed=0):
    """The slices of all replicas side by side, a row for each step."""
    pairs = tf.constant(
        [(step, replica) for step in steps for replica in range(replicas)], tf.int64
    )

    experiment = Experiment(global_batch_size=batch_size, replicas=replicas, seed=seed)

    @tf.function(autograph=False)
    def every_slice():
        return tf.map_fn(lambda pair: slice_indices(experiment, size, *tf.unstack(pair))[1], pairs)

    return every_slice().numpy().reshape(len(steps), batch_size)


def global_batch(step, size, replicas, batch_size, seed=0):
    return global_batches([step], size, replicas, batch_size, seed)[0]


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_slices_of_an_epoch_are_disjoint_and_cover_the_data(data):
    replicas = data.draw(st.sampled_from([1, 2, 4, 8]))
    batch_size = replicas * data.draw(st.integers(1, 5))
    size = data.draw(st.integers(batch_size, batch_size * 6))
    seed, epoch = data.draw(st.integers(0, 2**31)), data.draw(st.integers(0, 1000))
    steps = size // batch_size
    seen = global_batches(
        range(epoch * steps, (epoch + 1) * steps), size, replicas, batch_size, seed
    ).ravel()
    assert seen.min() >= 0
    assert seen.max() < size
    assert len(set(seen.tolist())) == len(seen) == steps * batch_size
    if size % batch_size == 0:
        assert set(seen.tolist()) == set(range(size))


@settings(deadline=None, max_examples=10)
@given(st.integers(8, 200), st.integers(0, 50), st.integers(0, 2**31))
def test_the_global_batch_is_the_same_for_every_number_of_replicas(size, step, seed):
    first, *others = [
        global_batch(step, size, replicas, 8, seed).tolist() for replicas in (1, 2, 4, 8)
    ]
    assert others == [first] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 9, 1000, 1024, 50_000])
def test_an_epoch_of_any_size_is_a_permutation(size):
    np.testing.assert_array_equal(np.sort(indices(3, 0, size, 1, size)), np.arange(size))


def test_another_epoch_and_another_seed_have_another_order():
    first, again = global_batch(0, 640, 2, 64), global_batch(0, 640, 2, 64)
    np.testing.assert_array_equal(first, again)
    for other in (global_batch(10, 640, 2, 64), global_batch(0, 640, 2, 64, seed=1)):
        assert (first == other).mean() < 0.1
    assert (np.diff(first) == 1).mean() < 0.1  # not merely shifted


def test_places_in_the_order_are_roughly_even():
    """Over 400 epochs of 10 examples each index comes first about 40 times; 3.3 deviations is 20
    more."""
    counts = np.bincount(global_batches(range(400), 10, 1, 10)[:, 0], minlength=10)
    assert counts.min() > 18
    assert counts.max() < 64


# --- random numbers and augmentation, once more in NumPy


def mix(x):
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def drawn_by_numpy(name, seed, epoch, examples):
    with np.errstate(over="ignore"):
        start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") ^ seed
        key = mix(np.uint64(epoch) + mix(np.uint64(start)))
        return (mix(examples.astype(np.uint64) + key) >> np.uint64(33)).astype(np.int64)


def crop_and_flip_by_numpy(picture, pad, flip, row, column, mirror):
    height, width, _ = picture.shape
    padded = np.zeros((height + 2 * pad, width + 2 * pad, picture.shape[2]), np.uint8)
    padded[pad : pad + height, pad : pad + width] = picture
    top, left = row % (2 * pad + 1), column % (2 * pad + 1)
    crop = padded[top : top + height, left : left + width]
    return crop[:, ::-1] if flip and mirror % 2 else crop


def train_batch(settings, step=0, replica=0, shape=(8, 6, 3), size=40, seed=5, **changes):
    """A prepared batch of eight with its raw pictures and their indices, of an experiment with two
    replicas."""
    images = np.random.default_rng(0).integers(0, 256, (size, *shape), np.uint8)
    labels = np.arange(size) % 10
    experiment = Experiment(augment=settings, scaling=UNIT, global_batch_size=16, seed=seed)
    experiment = replace(experiment, **changes)
    batch_of = build_train_batches(
        experiment, in_memory(images, labels), build_targets(experiment, 10)
    )
    batch = batch_of(number(step), number(replica))
    chosen = indices(step, replica, size, 2, 8, seed)
    np.testing.assert_array_equal(batch.labels.numpy(), labels[chosen])
    return batch, images[chosen], chosen


def to_pixels(x):
    """Undoes `unit`."""
    pixels = (x.numpy() + 1) * 128
    np.testing.assert_array_equal(pixels, np.round(pixels))
    return pixels.astype(np.uint8)


def test_random_numbers_are_splitmix64_of_name_seed_epoch_and_index():
    examples = np.array([0, 1, 7, 49_999, 2**40])
    for seed, epoch in [(0, 0), (5, 3), (2**62, 10**6)]:
        draws = Draws(seed, number(epoch), tf.constant(examples))
        for name in ("flip", "some feature/2"):
            wanted = drawn_by_numpy(name, seed, epoch, examples)
            np.testing.assert_array_equal(draws.one(name), wanted)
            np.testing.assert_array_equal(draws.several(["other", name])[:, 1], wanted)


def test_random_numbers_are_roughly_uniform_and_independent():
    names, examples = ["a", "b", "crop/row", "crop/column", "flip"], tf.range(20_000)
    bits = Draws(1, number(2), examples).several(names).numpy()
    for column in bits.T:
        counts = np.bincount(column % 9, minlength=9)
        chi_square = ((counts - 20_000 / 9) ** 2 / (20_000 / 9)).sum()
        assert chi_square < 30  # 8 degrees of freedom: chance 0.0002
        assert abs(column.mean() / 2**31 - 0.5) < 0.01
    correlation = np.corrcoef(bits.T) - np.eye(5)
    assert np.abs(correlation).max() < 0.04
    other_epoch = Draws(1, number(3), examples).several(names).numpy()
    assert abs(np.corrcoef(bits[:, 0], other_epoch[:, 0])[0, 1]) < 0.04
    assert (bits == other_epoch).sum() < 10


@pytest.mark.parametrize(("padding", "flip"), [(0, False), (0, True), (2, False), (4, True)])
def test_crop_and_flip_equal_numpy_pixel_for_pixel(padding, flip):
    for step, replica in [(0, 0), (3, 1)]:
        batch, raw, chosen = train_batch(Augmentation(padding=padding, flip=flip), step, replica)
        names = ("crop/row", "crop/column", "flip")
        numbers = [drawn_by_numpy(name, 5, step // 2, chosen) for name in names]
        wanted = [
            crop_and_flip_by_numpy(picture, padding, flip, *own)
            for picture, *own in zip(raw, *numbers, strict=True)
        ]
        np.testing.assert_array_equal(to_pixels(batch.images), np.stack(wanted))
        if padding or flip:
            assert (to_pixels(batch.images) != raw).any()


@pytest.mark.parametrize(
    "settings",
    [
        Augmentation(padding=2, flip=True, cutout=3),
        Augmentation(saturation=0.4, hue=0.1, rand_augment=2, random_erasing=0.5),
    ],
)
def test_an_example_is_augmented_alike_whatever_replica_prepares_it(settings):
    by_two = [train_batch(settings, 1, replica)[0].images for replica in (0, 1)]
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 6, 3), np.uint8)
    alone = Experiment(augment=settings, scaling=UNIT, global_batch_size=16, replicas=1, seed=5)
    split = in_memory(images, np.arange(40) % 10)
    whole = build_train_batches(alone, split, build_targets(alone, 10))(number(1), number(0))
    np.testing.assert_array_equal(np.concatenate(by_two), whole.images)


def test_alternating_flips_change_every_epoch_and_are_random_at_first():
    settings, examples = (
        Augmentation(flip=True, alternate_flip=True),
        tf.range(1000, dtype=tf.int64),
    )
    first, second, third = (
        augment.mirrored(settings, Draws(7, number(epoch), examples)).numpy() for epoch in range(3)
    )
    assert np.all(first != second)
    assert np.array_equal(first, third)
    assert 400 < first.sum() < 600


def test_a_golden_digest_pins_the_order():
    order = global_batches([0, 389, 390, 10_000], 50_000, 2, 128, seed=7)
    assert sha256(order.astype("<i8")) == GOLDEN_ORDER


@pytest.mark.parametrize("feature", GOLDEN_FEATURES)
def test_a_golden_digest_pins_each_augmentation(feature):
    """Whole numbers only, so that the digest is the same on every kind of CPU."""
    settings, golden = GOLDEN_FEATURES[feature]
    batch, _, _ = train_batch(settings, step=12_345, shape=(32, 32, 3), size=50, seed=7)
    seen = np.round(batch.targets.numpy() * 1e4).astype("<i4") if settings.mixup else batch.images
    assert sha256(seen if settings.mixup else to_pixels(seen))[:16] == golden


def test_golden_numbers_pin_the_keys_of_operations_and_initial_weights():
    keys = [op_key(name, 7, number(3), number(1)).numpy().tolist() for name in ("mixup", "layers")]
    assert keys == GOLDEN_KEYS
    seeds = [initializer_seed(f"weights/{layer}", 7) for layer in ("stem_conv", "head_dense")]
    assert seeds == GOLDEN_SEEDS


def test_an_augmentation_leaves_the_choices_of_the_others_alone():
    plain, _, _ = train_batch(Augmentation(padding=2, flip=True), shape=(16, 16, 3))
    more, _, _ = train_batch(Augmentation(padding=2, flip=True, cutout=5), shape=(16, 16, 3))
    kept = more.images.numpy() != 0
    assert 0.8 < kept.mean() < 1
    np.testing.assert_array_equal(more.images.numpy()[kept], plain.images.numpy()[kept])


@pytest.mark.parametrize("side", [1, 4, 5])
def test_cutout_blanks_one_square_around_a_random_pixel(side):
    batch, _, chosen = train_batch(Augmentation(cutout=side))
    plain, _, _ = train_batch(PLAIN)
    rows, columns = (drawn_by_numpy(f"cutout/{axis}", 5, 0, chosen) for axis in ("row", "column"))
    for picture, without, row, column in zip(
        batch.images.numpy(), plain.images.numpy(), rows, columns, strict=True
    ):
        top, left = row % 8 - side // 2, column % 6 - side // 2
        blank = np.zeros((8, 6), bool)
        blank[max(0, top) : top + side, max(0, left) : left + side] = True
        assert 1 <= blank.sum() <= side**2
        np.testing.assert_array_equal(picture, np.where(blank[..., None], 0, without))


def test_cutout_has_its_whole_area_where_it_does_not_stick_out():
    batch, _, _ = train_batch(Augmentation(cutout=4), shape=(40, 40, 3), seed=1)
    areas = (batch.images.numpy() == 0).all(-1).sum((1, 2))
    assert areas.max() == 16
    assert areas.min() >= 4


def test_mixup_blends_opposite_examples_and_their_labels_with_one_share():
    mixed, _, _ = train_batch(Augmentation(mixup=0.4))
    plain, _, _ = train_batch(PLAIN)
    np.testing.assert_allclose(mixed.targets.numpy().sum(1), 1, rtol=1e-6)
    assert mixed.targets.numpy().min() >= 0
    own, other = plain.targets.numpy(), plain.targets.numpy()[::-1]
    differ = own.argmax(1) != other.argmax(1)
    shares = mixed.targets.numpy()[np.arange(8), own.argmax(1)]
    assert len(set(shares[differ].tolist())) == differ.sum() >= 4
    x, opposite = plain.images.numpy(), plain.images.numpy()[::-1]
    wanted = shares[:, None, None, None] * x + (1 - shares[:, None, None, None]) * opposite
    np.testing.assert_allclose(mixed.images.numpy()[differ], wanted[differ], rtol=1e-4, atol=1e-5)


def test_mixup_differs_by_step_and_replica_and_repeats_exactly():
    settings = Augmentation(mixup=1.0)
    digests = [
        sha256(train_batch(settings, step, replica)[0].targets.numpy())
        for step, replica in [(0, 0), (0, 0), (0, 1), (1, 0)]
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_label_smoothing_spreads_its_share_over_all_classes():
    batch, _, _ = train_batch(PLAIN, loss=Loss(label_smoothing=0.2))
    wanted = np.full((8, 10), 0.02)
    wanted[np.arange(8), batch.labels.numpy()] += 0.8
    np.testing.assert_allclose(batch.targets.numpy(), wanted, rtol=1e-6)


def test_scalings_agree_with_numpy():
    unit, raw, _ = train_batch(PLAIN)
    raw = raw.astype(np.float64)
    np.testing.assert_array_equal(unit.images.numpy(), raw / 128 - 1)
    mean, std = (10.0, 20.0, 30.0), (2.0, 50.0, 60.0)
    by_channel, _, _ = train_batch(PLAIN, scaling=Scaling("mean_std", mean, std))
    np.testing.assert_allclose(by_channel.images.numpy(), (raw - mean) / std, rtol=1e-5, atol=1e-6)
    standardized, _, _ = train_batch(PLAIN, scaling=Scaling("standardize"))
    centred = raw - raw.mean((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(
        standardized.images.numpy(),
        centred / raw.std((1, 2, 3), keepdims=True),
        rtol=1e-4,
        atol=1e-5,
    )


def test_standardising_a_flat_picture_gives_zeros_not_nan():
    flat = np.full((4, 8, 8, 3), 77, np.uint8)
    batch = build_eval_batches(
        Experiment(scaling=Scaling("standardize")), in_memory(flat, np.zeros(4, int)), 10, 4
    )(number(0))
    np.testing.assert_array_equal(batch.images.numpy(), np.zeros_like(flat))


def test_grey_pictures_are_scaled_by_the_first_channels_numbers():
    batch, raw, _ = train_batch(
        PLAIN, shape=(8, 6, 1), scaling=Scaling("mean_std", (10.0, 0.0, 0.0), (4.0, 1.0, 1.0))
    )
    np.testing.assert_allclose(batch.images.numpy(), (raw.astype(np.float64) - 10) / 4, rtol=1e-6)


def test_evaluation_batches_are_scaled_not_augmented_and_padded_with_weight_zero():
    images = np.random.default_rng(0).integers(0, 256, (7, 8, 6, 3), np.uint8)
    experiment = Experiment(
        augment=Augmentation(padding=4, flip=True, cutout=4, mixup=1.0),
        scaling=UNIT,
        loss=Loss(label_smoothing=0.1),
    )
    batch_of = build_eval_batches(experiment, in_memory(images, np.arange(7)), 10, 4)
    first, second, beyond = (batch_of(number(n)) for n in range(3))
    np.testing.assert_array_equal(to_pixels(first.images), images[:4])
    np.testing.assert_array_equal(to_pixels(second.images)[:3], images[4:])
    assert second.images.shape == (4, 8, 6, 3)
    assert [batch.weights.numpy().tolist() for batch in (first, second, beyond)] == [
        [1, 1, 1, 1],
        [1, 1, 1, 0],
        [0, 0, 0, 0],
    ]
    np.testing.assert_array_equal(second.targets.numpy()[:3], np.eye(10)[4:7])


def test_numbers_of_several_names_are_those_of_single_ones_in_a_graph_too() -> None:
    names = [f"crop/{k}" for k in range(8)]  # keys above and below 2**63

    @tf.function
    def draw(seed: int) -> tuple[tf.Tensor, tf.Tensor]:
        draws = Draws(seed, tf.constant(1, tf.int64), tf.range(5, dtype=tf.int64))
        return draws.several(names), tf.stack([draws.one(name) for name in names], axis=1)

    together, apart = draw(0)
    np.testing.assert_array_equal(together, apart)
    assert (together.numpy() != draw(1)[0].numpy()).all()
