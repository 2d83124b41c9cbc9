"""Batches for training and evaluation: golden digests pin every augmentation."""

import numpy as np
import pytest

from augmented import UNIT, sha256, to_pixels, train_batch
from paceline.data.batches import build_eval_batches, build_train_batches
from paceline.data.source import in_memory
from paceline.experiment.experiment import Augmentation, Experiment, Loss
from paceline.maths.losses import build_targets
from tiny import number

# To renew a golden value after a wanted change of an augmentation (it changes every result of the
# program: say so in CHANGELOG.md), run this file and copy the digest from the failure.
GOLDEN_FEATURES = {
    "crop": (Augmentation(padding=4), "26e351f3d90268b6"),
    "flip": (Augmentation(flip=True), "ca36930e1f142d63"),
    "alternating flip": (Augmentation(flip=True, alternate_flip=True), "3b26c9188f6c7a6b"),
    "crop and flip": (Augmentation(padding=4, flip=True), "2d0cd71e2b827619"),
    "cutout": (Augmentation(cutout=9), "c7f4f6354000d465"),
    "mixup": (Augmentation(mixup=0.4), "81a2cfcb1b935c50"),
    "rand-augment": (Augmentation(rand_augment=2), "d76cdaad35a838a0"),
    "random erasing": (Augmentation(random_erasing=0.7), "3b034903ab25dfef"),
}


@pytest.mark.parametrize("feature", GOLDEN_FEATURES)
def test_a_golden_digest_pins_each_augmentation(feature):
    """Whole numbers only, so that the digest is the same on every kind of CPU."""
    settings, golden = GOLDEN_FEATURES[feature]
    batch, _, _ = train_batch(settings, step=12_345, shape=(32, 32, 3), size=50, seed=7)
    seen = np.round(batch.targets.numpy() * 1e4).astype("<i4") if settings.mixup else batch.images
    assert sha256(seen if settings.mixup else to_pixels(seen))[:16] == golden


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


def test_an_augmentation_leaves_the_choices_of_the_others_alone():
    plain, _, _ = train_batch(Augmentation(padding=2, flip=True), shape=(16, 16, 3))
    more, _, _ = train_batch(Augmentation(padding=2, flip=True, cutout=5), shape=(16, 16, 3))
    kept = more.images.numpy() != 0
    assert 0.8 < kept.mean() < 1
    np.testing.assert_array_equal(more.images.numpy()[kept], plain.images.numpy()[kept])


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
