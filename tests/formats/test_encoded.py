"""Encoded pictures: what is decoded is what PIL sees upright, crops stay inside, and choices depend
on (seed, epoch, index) only."""

import hashlib
import io
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from paceline.data.augment.crop import scale
from paceline.data.batches import build_eval_batches, build_train_batches, image_shape
from paceline.data.draws import Draws
from paceline.data.source import Source, Split
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Data, Experiment, Scaling
from paceline.formats.encoded.boxes import area_box, short_side, short_side_box
from paceline.formats.encoded.decode import decode_any
from paceline.formats.encoded.headers import read_headers
from paceline.formats.encoded.prepare import evaluation_images
from paceline.formats.image_file import inspect_image
from paceline.formats.reading import explain
from paceline.maths.losses import build_targets
from paceline.results.image_bytes import to_png
from tiny import number

SIZE = 40
REAL = Path(__file__).parents[3] / "shared/data/imagenet-samples"


def drawn(width, height, seed=0):
    """Soft blobs of colour: no detail that another filter would show differently, and no symmetry.
    Soft blobs of colour: no detail that another filter would show differently, and no symmetry."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.BICUBIC)


def encode(picture, kind="JPEG", **options):
    file = io.BytesIO()
    picture.save(file, kind, **({"quality": 95} | options if kind == "JPEG" else options))
    return file.getvalue()


def exif_segment(orientation, order):
    """An APP1 segment with three tags, the orientation last; `order` is < or >."""
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    tags = [struct.pack(order + "HHII", tag, 4, 1, 6) for tag in (0x0100, 0x0101)]
    tags.append(struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0))
    body = b"Exif\0\0" + head + struct.pack(order + "H", len(tags)) + b"".join(tags) + bytes(4)
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def with_orientation(jpeg, orientation, order, before=b""):
    """Behind the JFIF segment, and behind `before`."""
    end = 4 + struct.unpack(">H", jpeg[4:6])[0]
    return jpeg[:end] + before + exif_segment(orientation, order) + jpeg[end:]


def upright(encoded):
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture) // 257).astype(np.uint8))
    return picture.convert("RGB")


def expected(encoded, size=SIZE):
    """The central crop, computed by PIL and NumPy from the whole decoded picture."""
    pixels = np.asarray(upright(encoded), np.float64)
    height, width, _ = pixels.shape
    side = int(size * min(height, width) / short_side(size) + 0.5)
    top, left = (height - side) // 2, (width - side) // 2
    return bilinear(bilinear(pixels[top : top + side, left : left + side], size, 0), size, 1)


def bilinear(pixels, size, axis):
    length = pixels.shape[axis]
    places = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
    low = np.floor(places).astype(int)
    share = np.expand_dims(places - low, tuple(other for other in range(3) if other != axis))
    return (
        pixels.take(low, axis) * (1 - share)
        + pixels.take(np.minimum(low + 1, length - 1), axis) * share
    )


@tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
def evaluated(encoded):
    return evaluation_images(encoded, SIZE, tf.range(100, 100 + tf.size(encoded, tf.int64)))


@tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.string)])
def decoded(data):
    return decode_any(data)


@tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
def headers_of(encoded):
    return read_headers(encoded)


def check_against_pil(names, encoded, tolerance=2.0):
    found = evaluated(tf.constant(encoded)).numpy()
    assert found.shape == (len(encoded), SIZE, SIZE, 3)
    apart = {
        name: np.abs(one - expected(string)).mean()
        for name, one, string in zip(names, found, encoded, strict=True)
    }
    assert {name: value for name, value in apart.items() if value > tolerance} == {}


def test_formats_decode_to_three_channels():
    picture = drawn(90, 70)
    grey16 = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    formats = {
        "jpeg": encode(picture),
        "progressive": encode(picture, progressive=True),
        "grey": encode(picture.convert("L")),
        "cmyk, inverted as Adobe does": encode(picture.convert("CMYK")),
        "png, whatever its name says": encode(picture, "PNG"),
        "png with alpha": encode(picture.convert("RGBA"), "PNG"),
        "png with 16 bits": encode(grey16, "PNG"),
        "palette": encode(picture.quantize(200), "PNG"),
        "gif": encode(picture.quantize(200), "GIF"),
        "bmp": encode(picture, "BMP"),
        "webp": encode(picture, "WEBP", lossless=True),
        "one pixel": encode(drawn(1, 1), "PNG"),
        "a narrow strip": encode(drawn(300, 3)),
    }
    check_against_pil(list(formats), list(formats.values()))


def transparent(picture):
    """The upper third cannot be seen, the lower half only in part."""
    pixels = np.array(picture.convert("RGBA"))
    pixels[: len(pixels) // 3, :, 3], pixels[len(pixels) // 2 :, :, 3] = 0, 128
    return Image.fromarray(pixels)


def several(picture, kind, **options):
    other = Image.new("RGB", picture.size, "red")
    return encode(picture, kind, save_all=True, append_images=[other], duration=50, **options)


def test_what_tensorflow_alone_reads_differently_is_as_pillow_and_predict_read_it():
    picture = drawn(50, 40)
    files = {
        "a palette": encode(picture.quantize(16), "BMP"),
        "a palette of greys": encode(picture.convert("L"), "BMP"),
        "32 bits": encode(picture.convert("RGBA"), "BMP"),
        "frames": several(picture.quantize(16), "GIF"),
        "webp": encode(transparent(picture), "WEBP", lossless=True, exact=True),
        "webp with losses": encode(transparent(picture), "WEBP"),
        "webp without transparency": encode(picture, "WEBP"),
    }
    for name, data in files.items():
        wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        np.testing.assert_array_equal(decoded(data).numpy(), wanted, name)
        np.testing.assert_array_equal(decoded(to_png(data)).numpy(), wanted, name)


def test_what_is_transparent_in_a_gif_is_black():
    data = encode(transparent(drawn(50, 40)), "GIF")
    found = decoded(data).numpy()
    assert found[:13].max() == 0
    assert found[13:].max() > 0
    np.testing.assert_array_equal(decoded(to_png(data)).numpy(), found)


def gif_with_a_small_frame():
    """The frame begins at (2, 3) of an image of 50 x 40."""
    data = bytearray(encode(drawn(30, 20).quantize(4), "GIF"))
    frame = data.index(b"\x2c\0\0\0\0" + struct.pack("<HH", 30, 20))
    data[6:10], data[frame + 1 : frame + 5] = struct.pack("<HH", 50, 40), struct.pack("<HH", 2, 3)
    return bytes(data)


def with_bits(bits):
    data = bytearray(encode(drawn(50, 40), "BMP"))
    data[28:30] = struct.pack("<H", bits)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (several(drawn(50, 40), "WEBP"), "an animated WebP cannot be trained on"),
        (gif_with_a_small_frame(), "first frame of this GIF does not fill"),
        (encode(drawn(50, 40).convert("1"), "BMP"), "8, 24 or 32 bits"),
        (with_bits(16), "8, 24 or 32 bits"),
    ],
)
def test_what_tensorflow_cannot_decode_is_refused_by_data_check_and_in_training(data, reason):
    """Pillow and `predict` read all of them."""
    assert Image.open(io.BytesIO(data)).size == (50, 40)
    assert to_png(data)
    with pytest.raises(ValueError, match=reason):
        inspect_image(data)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        evaluated(tf.constant([data]))
    assert "`paceline data check DIR` finds its file" in str(explain(error.value))


def test_exif_orientations_end_the_right_way_up():
    jpeg = encode(drawn(90, 64))
    filled = (
        b"\xff\xe2\x00\x04ab" + b"\xff\xff"
    )  # another segment, then filling bytes before the marker
    turned = {
        (order, orientation, before): with_orientation(jpeg, orientation, order, before)
        for order in "<>"
        for orientation in range(1, 9)
        for before in (b"", filled)
    }
    check_against_pil([str(name) for name in turned], list(turned.values()))
    orientations = headers_of(tf.constant(list(turned.values()))).orientation.numpy()
    assert orientations.tolist() == [orientation for _, orientation, _ in turned]


def test_a_wrong_orientation_is_read_as_none():
    jpeg = encode(drawn(30, 20))
    strings = [
        jpeg,
        with_orientation(jpeg, 0, "<"),
        with_orientation(jpeg, 9, ">"),
        jpeg[:20] + exif_segment(6, "<")[:30],
    ]
    assert headers_of(tf.constant(strings)).orientation.numpy().tolist() == [1, 1, 1, 1]


def test_headers_of_damaged_pictures_end():
    jpeg, random = encode(drawn(30, 20)), np.random.default_rng(0)
    strings = [
        b"",
        b"\xff\xd8\xff",
        b"\xff" * 3000,
        b"\xff\xd8" + b"\xff" * 3000,
        b"\x89PNG\r\n\x1a\n",
    ]
    strings += [jpeg[: random.integers(0, len(jpeg))] for _ in range(100)]
    for _ in range(200):
        damaged = bytearray(with_orientation(jpeg, 6, "<"))
        damaged[random.integers(0, 200)] = random.integers(0, 256)
        strings.append(bytes(damaged))
    orientation = headers_of(tf.constant(strings)).orientation.numpy()
    assert orientation.min() >= 1
    assert orientation.max() <= 8


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
def test_what_is_no_picture_ends_the_step_with_its_number(bad):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"(?s)example.*101.*is not a whole JPEG"
    ):
        evaluated(tf.constant([encode(drawn(9, 9)), bad]))


SIDES = (
    np.random.default_rng(0).integers(1, 600, (20_000, 2)) // np.array([[1, 1], [1, 20]] * 10_000)
    + 1
)


def box_of(choose, *options):
    draws = Draws(3, number(1), tf.range(len(SIDES), dtype=tf.int64))
    box = [part.numpy() for part in choose(*tf.constant(SIDES.T, tf.int64), draws, *options)]
    assert (box[0] >= 0).all()
    assert (box[1] >= 0).all()
    assert (box[2] >= 1).all()
    assert (box[3] >= 1).all()
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


# Like the golden values of test_order_augment: new ones are a change of every result with such
# crops.
@pytest.mark.parametrize(
    ("choose", "option", "golden"),
    [(area_box, 0.08, "dcd47c5cd1f178e2"), (short_side_box, 224, "2c28316dcea77dfa")],
)
def test_golden_digests_pin_the_boxes_of_random_crops(choose, option, golden):
    """Integers and square roots of doubles: the same on every kind of CPU."""
    boxes = np.stack(box_of(choose, option), axis=1).astype("<i8")
    assert hashlib.sha256(boxes.tobytes()).hexdigest()[:16] == golden


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
        return tf.concat([one.images for one in batches], 0), tf.concat(
            [one.labels for one in batches], 0
        )

    return lambda step: [tensor.numpy() for tensor in images_and_labels(number(step))]


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


def test_a_training_crop_is_a_part_of_its_picture_and_half_are_mirrored():
    ramp = np.zeros((80, 100, 3), np.uint8)
    ramp[:, :, 0], ramp[:, :, 1] = np.arange(100)[None] * 2, np.arange(80)[:, None] * 3
    string = encode(Image.fromarray(ramp), subsampling=0, quality=100)
    split = Split(
        64,
        lambda indices: (
            tf.fill(tf.shape(indices), tf.constant(string)),
            tf.cast(indices, tf.int32),
        ),
    )
    experiment = Experiment(
        data=Data(image_size=SIZE),
        augment=Augmentation(flip=True),
        scaling=Scaling("mean", (0, 0, 0)),
        global_batch_size=64,
        replicas=1,
    )
    images = build_train_batches(experiment, split, build_targets(experiment, 64))(
        number(0), number(0)
    ).images.numpy()
    across = images[:, SIZE // 2, -1, 0] - images[:, SIZE // 2, 0, 0]
    down = images[:, -1, SIZE // 2, 1] - images[:, 0, SIZE // 2, 1]
    assert down.min() > 0  # never upside down
    assert 16 < (across < 0).sum() < 48
    assert len(np.unique(np.round(np.abs(across)))) > 10


def test_evaluation_batches_hold_every_encoded_picture_once():
    split = split_of(7)
    experiment = Experiment(data=Data(image_size=SIZE), scaling=Scaling("mean", (1, 2, 3)))
    batch = tf.function(build_eval_batches(experiment, split, 24, 5), autograph=False)
    batches = [batch(number(k)) for k in range(2)]
    weights = np.concatenate([one.weights for one in batches])
    labels = np.concatenate([one.labels for one in batches])
    images = np.concatenate([one.images for one in batches])[weights > 0] + np.array(
        [1, 2, 3], np.float32
    )
    assert labels[weights > 0].tolist() == list(range(7))
    strings, _ = split.read(tf.range(7))
    assert (
        max(
            np.abs(image - expected(string)).mean()
            for image, string in zip(images, strings.numpy(), strict=True)
        )
        < 2
    )


def test_small_pictures_of_one_size_are_enlarged():
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


def test_scaling_takes_means_and_deviations():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 3), np.uint8)
    mean, std = (
        np.array([123.68, 116.78, 103.94], np.float32),
        np.array([58.4, 57.1, 57.4], np.float32),
    )
    data = {"mean": tuple(mean.tolist()), "std": tuple(std.tolist())}
    np.testing.assert_array_equal(
        scale(Scaling("mean", **data), tf.constant(pixels)), pixels - mean
    )
    np.testing.assert_array_equal(
        scale(Scaling("mean_std", **data), tf.constant(pixels)), (pixels - mean) / std
    )


@pytest.mark.parametrize(
    ("size", "padding", "line"), [(0, 0, "data.image-size is 0"), (224, 4, "augment.padding is 4")]
)
def test_what_encoded_pictures_need_is_said(size, padding, line):
    split = Split(1, lambda indices: (indices, indices))
    with pytest.raises(UserError, match=line):
        image_shape(
            Experiment(data=Data(image_size=size), augment=Augmentation(padding=padding)),
            Source(split, split, ("a",), None),
        )


@pytest.mark.skipif(not REAL.is_dir(), reason=f"there are no real pictures in {REAL}")
def test_real_photographs_decode_as_pil_decodes_them():
    files = sorted(REAL.glob("*.JPEG"))
    strings = [file.read_bytes() for file in files]
    headers = headers_of(tf.constant(strings))
    assert [Image.open(file).size for file in files] == list(
        zip(headers.width.numpy(), headers.height.numpy(), strict=True)
    )
    found = evaluated(tf.constant(strings)).numpy()
    smooth = [
        np.asarray(ImageOps.fit(upright(string), (SIZE, SIZE), Image.BILINEAR, 1 / 16), np.float32)
        for string in strings
    ]
    apart = np.abs(found - np.stack(smooth)).mean(axis=(1, 2, 3))
    assert apart.mean() < 8
    assert all(one.std() > 5 for one in found)
