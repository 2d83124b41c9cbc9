"""Encoded images in batches: choices depend on (seed, epoch, index) only."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from encoded_images import SIZE, drawn, encode, evaluated
from paceline.data.batches import build_train_batches
from paceline.data.draws import Draws
from paceline.data.source import Split
from paceline.experiment.experiment import Augmentation, Data, Experiment
from paceline.formats.encoded.prepare import area_box, short_side, short_side_box, train_images
from paceline.formats.reading import explain
from paceline.maths.losses import build_targets
from tiny import number


def test_large_jpegs_are_made_smaller_without_aliasing():
    noise = np.random.default_rng(0).integers(0, 256, (700, 900, 3), np.uint8)
    picture = Image.fromarray(
        np.clip(np.asarray(drawn(900, 700)) * 0.8 + noise * 0.2, 0, 255).astype(np.uint8)
    )
    found = evaluated(tf.constant([encode(picture), encode(picture, "PNG")])).numpy()
    side = int(SIZE * 700 / short_side(SIZE) + 0.5)
    top, left = (700 - side) // 2, (900 - side) // 2
    smooth = np.asarray(
        picture.crop((left, top, left + side, top + side)).resize((SIZE, SIZE), Image.BILINEAR),
        np.float32,
    )
    assert np.abs(found - smooth).mean(axis=(1, 2, 3)).max() < 3


@pytest.mark.parametrize("bad", [b"", b"not a picture", b"\xff\xd8\xff\xd9"])
def test_what_is_not_an_image_ends_the_step_with_what_to_do(bad):
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        evaluated(tf.constant([encode(drawn(9, 9)), bad]))
    assert "`paceline data check DIR` finds its file" in str(explain(error.value))


def split_of(count=24):
    strings = tf.constant([encode(drawn(50 + 3 * k, 90 - 2 * k, k)) for k in range(count)])
    return Split(count, lambda indices: (tf.gather(strings, indices), tf.cast(indices, tf.int32)))


def train_function(split, replicas, crop):
    """step -> images and labels of the global batch."""
    experiment = Experiment(
        data=Data(image_size=SIZE),
        augment=Augmentation(flip=True, crop=crop),
        global_batch_size=8,
        replicas=replicas,
        seed=5,
    )
    batch = build_train_batches(experiment, split, build_targets(experiment, 24))

    @tf.function(autograph=False)
    def images_and_labels(step):
        batches = [batch(step, number(replica)) for replica in range(replicas)]
        images, _, labels, _ = (tf.concat(parts, 0) for parts in zip(*batches, strict=True))
        return images, labels

    return lambda step: [tensor.numpy() for tensor in images_and_labels(number(step))]


@pytest.mark.slow
@pytest.mark.parametrize("crop", ["area", "short-side"])
def test_crops_depend_on_seed_epoch_and_index_only(crop):
    split = split_of()
    whole, halves = train_function(split, 1, crop), train_function(split, 2, crop)
    (images, labels), (same, same_labels) = whole(2), halves(2)
    assert images.tobytes() == same.tobytes()
    assert labels.tobytes() == same_labels.tobytes()
    next_epoch = {
        label: image for step in (3, 4, 5) for image, label in zip(*whole(step), strict=True)
    }
    assert all(
        np.abs(image - next_epoch[label]).max() > 0.01
        for image, label in zip(images, labels, strict=True)
    )


def test_a_training_crop_is_a_part_of_its_image_and_half_are_mirrored():
    ramp = np.zeros((80, 100, 3), np.uint8)
    ramp[:, :, 0], ramp[:, :, 1] = np.arange(100)[None] * 2, np.arange(80)[:, None] * 3
    string = encode(Image.fromarray(ramp), subsampling=0, quality=100)
    experiment = Experiment(data=Data(image_size=SIZE), augment=Augmentation(flip=True))
    draws = Draws(3, number(1), tf.range(64, dtype=tf.int64))
    images = train_images(experiment, tf.constant([string] * 64), draws, 0).numpy()
    across = images[:, SIZE // 2, -1, 0] - images[:, SIZE // 2, 0, 0]
    down = images[:, -1, SIZE // 2, 1] - images[:, 0, SIZE // 2, 1]
    assert down.min() > 0  # never upside down
    assert 16 < (across < 0).sum() < 48
    assert len(np.unique(np.round(np.abs(across)))) > 10


SIDES = (
    np.random.default_rng(0).integers(1, 600, (20_000, 2)) // np.array([[1, 1], [1, 20]] * 10_000)
    + 1
)


def box_of(choose, *options):
    draws = Draws(3, number(1), tf.range(len(SIDES), dtype=tf.int64))
    box = [part.numpy() for part in choose(*tf.constant(SIDES.T, tf.int64), draws, *options)]
    assert min(part.min() for part in box[:2]) >= 0
    assert min(part.min() for part in box[2:]) >= 1
    assert (box[0] + box[2] <= SIDES[:, 0]).all()
    assert (box[1] + box[3] <= SIDES[:, 1]).all()
    return box


@pytest.mark.parametrize("area_min", [0.05, 0.08, 1.0])
def test_area_crops_stay_inside_and_have_the_area_and_aspect_asked_for(area_min):
    _, _, height, width = box_of(area_box, area_min)
    large = (SIDES.min(axis=1) > 200) & (
        np.abs(np.log(SIDES[:, 0] / SIDES[:, 1])) < 0.2
    )  # where any crop fits
    share, aspect = (height * width / SIDES.prod(axis=1))[large], (width / height)[large]
    assert share.min() > area_min * 0.95
    assert 0.72 < aspect.min() < aspect.max() < 1.4
    if area_min < 0.1:
        assert abs(np.log(aspect).mean()) < 0.01
        assert share.min() < area_min * 1.1
        assert share.max() > 0.9


def test_short_side_crops_are_squares_of_the_side_asked_for():
    _, _, height, width = box_of(short_side_box, 224)
    share = height / SIDES.min(axis=1)
    assert (height == width).all()
    large = SIDES.min(axis=1) > 200
    assert 224 / 512 - 0.01 < share[large].min() < 0.45
    assert 0.86 < share[large].max() < 224 / 256 + 0.01


@pytest.mark.parametrize(
    ("choose", "option", "golden"),
    [(area_box, 0.08, "dcd47c5cd1f178e2"), (short_side_box, 224, "2c28316dcea77dfa")],
)
def test_golden_digests_pin_the_boxes_of_random_crops(choose, option, golden):
    """Integers and square roots of doubles: the same on every kind of CPU."""
    boxes = np.stack(box_of(choose, option), axis=1).astype("<i8")
    assert hashlib.sha256(boxes.tobytes()).hexdigest()[:16] == golden
