"""Crop, flip and scaling equal NumPy; images of one size are resized; settings fit the source."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from augmented import PLAIN, drawn_by_numpy, to_pixels, train_batch
from encoded_images import SIZE, drawn
from paceline.data.batches import build_eval_batches, build_train_batches, evaluation_images
from paceline.data.draws import Draws
from paceline.data.images import image_shape, mirrored
from paceline.data.source import Source, Split, in_memory
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Data, Experiment, Scaling
from paceline.maths.losses import build_targets
from tiny import EXPERIMENT, build_tiny_core, number, pictures


def test_alternating_flips_change_every_epoch_and_are_random_at_first():
    settings, examples = (
        Augmentation(flip=True, alternate_flip=True),
        tf.range(1000, dtype=tf.int64),
    )
    first, second, third = (
        mirrored(settings, Draws(7, number(epoch), examples)).numpy() for epoch in range(3)
    )
    assert np.all(first != second)
    assert np.array_equal(first, third)
    assert 400 < first.sum() < 600


def test_small_images_of_one_size_are_enlarged():
    pixels = np.stack([np.asarray(drawn(30, 20, k)) for k in range(8)])
    split = Split(
        8, lambda indices: (tf.gather(tf.constant(pixels), indices), tf.cast(indices, tf.int32))
    )
    experiment = Experiment(
        data=Data(image_size=SIZE),
        scaling=Scaling("mean", (0, 0, 0)),
        global_batch_size=8,
        replicas=1,
    )
    images = build_eval_batches(experiment, split, 8, 8)(number(0)).images.numpy()
    wanted = np.asarray(Image.fromarray(pixels[3]).resize((60, 40), Image.BILINEAR))[:, 10:50]
    assert np.abs(images[3] - wanted).mean() < 1
    assert build_train_batches(experiment, split, build_targets(experiment, 8))(
        number(0), number(0)
    ).images.shape == (8, SIZE, SIZE, 3)
    assert image_shape(experiment, Source(split, split, ("a",), (20, 30, 3))) == (SIZE, SIZE, 3)


@pytest.mark.parametrize(
    ("size", "padding", "line"), [(0, 0, "data.image-size is 0"), (224, 4, "augment.padding is 4")]
)
def test_what_encoded_images_need_is_said(size, padding, line):
    split = Split(1, lambda indices: (indices, indices))
    with pytest.raises(UserError, match=line):
        image_shape(
            Experiment(data=Data(image_size=size), augment=Augmentation(padding=padding)),
            Source(split, split, ("a",), None),
        )


def test_colors_of_gray_images_are_refused():
    split = in_memory(np.zeros([4, 8, 8, 1], np.uint8), np.zeros(4, int))
    for change in ({"saturation": 0.5}, {"hue": 0.1}):
        with pytest.raises(UserError, match="these images have 1 channels"):
            image_shape(
                Experiment(augment=Augmentation(**change)), Source(split, split, ("a",), (8, 8, 1))
            )


def test_scalings_agree_with_numpy():
    unit, raw, _ = train_batch(PLAIN)
    raw = raw.astype(np.float64)
    np.testing.assert_array_equal(unit.images.numpy(), raw / 128 - 1)
    mean, std = (10.0, 20.0, 30.0), (2.0, 50.0, 60.0)
    for method, wanted in (("mean", raw - mean), ("mean_std", (raw - mean) / std)):
        by_channel, _, _ = train_batch(PLAIN, scaling=Scaling(method, mean, std))
        np.testing.assert_allclose(by_channel.images.numpy(), wanted, rtol=1e-5, atol=1e-6)
    standardized, _, _ = train_batch(PLAIN, scaling=Scaling("standardize"))
    centered = raw - raw.mean((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(
        standardized.images.numpy(),
        centered / raw.std((1, 2, 3), keepdims=True),
        rtol=1e-4,
        atol=1e-5,
    )


def test_standardizing_a_flat_image_gives_zeros_not_nan():
    flat = np.full((4, 8, 8, 3), 77, np.uint8)
    batch = build_eval_batches(
        Experiment(scaling=Scaling("standardize")), in_memory(flat, np.zeros(4, int)), 10, 4
    )(number(0))
    np.testing.assert_array_equal(batch.images.numpy(), np.zeros_like(flat))


def test_gray_images_are_scaled_by_the_first_channels_numbers():
    batch, raw, _ = train_batch(
        PLAIN, shape=(8, 6, 1), scaling=Scaling("mean_std", (10.0, 0.0, 0.0), (4.0, 1.0, 1.0))
    )
    np.testing.assert_allclose(batch.images.numpy(), (raw.astype(np.float64) - 10) / 4, rtol=1e-6)


def crop_by_numpy(picture, data, row, column, mirror):
    """Pad by NumPy, then cut."""
    side, pad = data.crop_size or picture.shape[0], data.padding
    extra = side - picture.shape[0]
    around = [[pad + extra // 2, pad + extra - extra // 2]] * 2 + [[0, 0]]
    padded = np.pad(picture, around, "reflect" if data.padding_mode == "reflect" else "constant")
    top, left = row % (2 * pad + 1), column % (2 * pad + 1)
    crop = padded[top : top + side, left : left + side]
    return crop[:, ::-1] if data.flip and mirror % 2 else crop


@pytest.mark.parametrize("mode", ["reflect", "zeros"])
@pytest.mark.parametrize(("padding", "crop_size"), [(2, 0), (2, 9), (0, 11), (3, 8)])
def test_padded_crops_equal_numpy_pixel_for_pixel(mode, padding, crop_size):
    data = Augmentation(padding=padding, padding_mode=mode, crop_size=crop_size, flip=True)
    batch, raw, chosen = train_batch(data, 3, 1, shape=(8, 8, 3))
    draws = [drawn_by_numpy(name, 5, 1, chosen) for name in ("crop/row", "crop/column", "flip")]
    wanted = [crop_by_numpy(*each) for each in zip(raw, [data] * 8, *draws, strict=True)]
    np.testing.assert_array_equal(to_pixels(batch.images), wanted)


@pytest.mark.parametrize(("side", "before"), [(33, 0), (34, 1), (32, 0)])
def test_evaluation_takes_the_crop_in_the_centre(side, before):
    images = pictures(3, (32, 32, 3))[0]
    settings = Augmentation(padding=2, padding_mode="reflect", crop_size=side)
    experiment = Experiment(augment=settings)
    found = evaluation_images(experiment, tf.constant(images)).numpy()
    around = [[0, 0], [before, side - 32 - before], [before, side - 32 - before], [0, 0]]
    np.testing.assert_array_equal(found, np.pad(images, around, "reflect"))


def test_reflected_padding_larger_than_the_image_is_refused():
    settings = Augmentation(padding=9, padding_mode="reflect")
    with pytest.raises(UserError, match="reflect cannot add 9 pixels to images of 8 pixels; use 7"):
        build_tiny_core(replace(EXPERIMENT, augment=settings))
