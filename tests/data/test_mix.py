"""Mixup and cutmix mix opposite examples and their targets."""

import numpy as np
import pytest

from augmented import PLAIN, drawn_by_numpy, sha256, train_batch
from paceline.experiment.experiment import Augmentation


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


@pytest.mark.parametrize("settings", [Augmentation(mixup=1.0), Augmentation(cutmix=1.0)])
def test_shares_differ_by_step_and_replica_and_repeat_exactly(settings):
    digests = [
        sha256(train_batch(settings, step, replica)[0].targets.numpy())
        for step, replica in [(0, 0), (0, 0), (0, 1), (1, 0)]
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_cutmix_replaces_a_rectangle_and_mixes_the_targets_by_its_area():
    shape = (16, 20, 3)
    mixed, _, chosen = train_batch(Augmentation(cutmix=1.0), shape=shape)
    plain, _, _ = train_batch(PLAIN, shape=shape)
    x, opposite = plain.images.numpy(), plain.images.numpy()[::-1]
    own, other = plain.targets.numpy(), plain.targets.numpy()[::-1]
    rows, columns = (drawn_by_numpy(f"cutmix/{axis}", 5, 0, chosen) for axis in ("row", "column"))
    shares = []
    for k, image in enumerate(mixed.images.numpy()):
        taken = (image == opposite[k]).all(-1) & (image != x[k]).any(-1)
        if taken.any():
            ys, xs = np.where(taken)
            box = np.zeros_like(taken)
            box[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1] = True
            np.testing.assert_array_equal(taken, box)
            assert box[rows[k] % 16, columns[k] % 20] or box.sum() < 4
        np.testing.assert_array_equal(image, np.where(taken[..., None], opposite[k], x[k]))
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
