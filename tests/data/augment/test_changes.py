"""Random changes of colors, blanked rectangles, mixup and cutmix equal NumPy."""

import colorsys

import numpy as np
import pytest

from augmented import PLAIN, drawn_by_numpy, sha256, train_batch
from paceline.experiment.experiment import Augmentation


def amounts_by_numpy(name, most, chosen):
    return most * (drawn_by_numpy(name, 5, 0, chosen) / 2**30 - 1)


def test_saturation_moves_colors_from_or_to_gray_as_numpy_does():
    batch, raw, chosen = train_batch(Augmentation(saturation=0.8))
    factors = 1 + amounts_by_numpy("saturation", 0.8, chosen)
    assert factors.max() - factors.min() > 0.5
    x = raw.astype(float)
    gray = (x @ [0.299, 0.587, 0.114])[..., None]
    wanted = np.clip(gray + factors[:, None, None, None] * (x - gray), 0, 255)
    np.testing.assert_allclose((batch.images.numpy() + 1) * 128, wanted, atol=2e-3)


def test_hue_turns_the_color_circle_as_colorsys_does():
    batch, raw, chosen = train_batch(Augmentation(hue=0.3))
    turns = amounts_by_numpy("hue", 0.3, chosen)

    def turned(pixel, turn):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255))
        return np.array(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)) * 255

    wanted = [
        [[turned(pixel, turn) for pixel in row] for row in image]
        for image, turn in zip(raw, turns, strict=True)
    ]
    np.testing.assert_allclose((batch.images.numpy() + 1) * 128, wanted, atol=5e-3)


@pytest.mark.parametrize("side", [1, 4, 5])
def test_cutout_blanks_one_square_around_a_random_pixel(side):
    batch, _, chosen = train_batch(Augmentation(cutout=side))
    plain, _, _ = train_batch(PLAIN)
    rows, columns = (drawn_by_numpy(f"cutout/{axis}", 5, 0, chosen) for axis in ("row", "column"))
    for image, without, row, column in zip(
        batch.images.numpy(), plain.images.numpy(), rows, columns, strict=True
    ):
        top, left = row % 8 - side // 2, column % 6 - side // 2
        blank = np.zeros((8, 6), bool)
        blank[max(0, top) : top + side, max(0, left) : left + side] = True
        assert 1 <= blank.sum() <= side**2
        np.testing.assert_array_equal(image, np.where(blank[..., None], 0, without))


def test_random_erasing_blanks_rectangles_with_its_probability_as_numpy_does():
    batch, _, chosen = train_batch(Augmentation(random_erasing=0.6), shape=(20, 30, 3))
    plain, _, _ = train_batch(PLAIN, shape=(20, 30, 3))
    numbers = {
        part: drawn_by_numpy(f"random-erasing/{part}", 5, 0, chosen)
        for part in ("chance", "share", "aspect", "row", "column")
    }
    blanked = 0
    for k, (image, without) in enumerate(
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
        np.testing.assert_array_equal(image, np.where(blank, 0, without))
    assert 2 <= blanked <= 7


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


def test_brightness_and_contrast_equal_numpy():
    plain, _, chosen = train_batch(Augmentation(), 3, 1)
    lit, _, _ = train_batch(Augmentation(brightness=0.2, contrast=0.3), 3, 1)
    light, contrast = (
        drawn_by_numpy(name, 5, 1, chosen) / 2**30 - 1 for name in ("brightness", "contrast")
    )
    wanted = plain.images.numpy() * (1 + 0.3 * contrast)[:, None, None, None]
    wanted += 0.2 * light[:, None, None, None]
    np.testing.assert_allclose(lit.images, wanted, atol=1e-5)
    assert np.abs(light).max() <= 1
    assert np.ptp(light) > 0.5
