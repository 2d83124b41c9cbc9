"""Sources: what they read, that they read it rightly, and clear lines for what they cannot read."""

import hashlib
import os
import pickle
import sys
import time
import timeit
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.build import Source, Split, build_source, hold_out
from paceline.data.shapes import draw_shapes
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats.arrays import in_memory, save_arrays
from paceline.formats.cifar import CIFAR10_CLASSES
from paceline.formats.detect import describe_source, description_lines, detect

REAL_CIFAR10 = Path.home() / ".cache/cifar10-dev/cifar-10-batches-bin"
PER_FILE = 4
NAMES100 = [f"name {label}" for label in range(100)]


def records(seed, num_classes):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (PER_FILE, 3072), np.uint8), random.integers(
        0, num_classes, PER_FILE, np.uint8
    )


def cifar_parts(name):
    """Stem of each file, its pixels and its fine labels."""
    stems = (
        [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
        if name == "cifar10"
        else ["train", "test"]
    )
    return [
        (stem, *records(seed, 10 if name == "cifar10" else 100)) for seed, stem in enumerate(stems)
    ]


def write_binary(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    for stem, pixels, labels in cifar_parts(name):
        coarse = [labels[:, None] // 5] if name == "cifar100" else []
        np.concatenate([*coarse, labels[:, None], pixels], axis=1).tofile(folder / f"{stem}.bin")
    file, names = (
        ("batches.meta.txt", CIFAR10_CLASSES)
        if name == "cifar10"
        else ("fine_label_names.txt", NAMES100)
    )
    (folder / file).write_text("\n".join(names) + "\n\n")
    return folder


def write_pickles(folder, name, protocol=2):
    folder.mkdir(parents=True, exist_ok=True)
    key = b"labels" if name == "cifar10" else b"fine_labels"
    for stem, pixels, labels in cifar_parts(name):
        content = {
            b"batch_label": b"a batch",
            b"data": pixels,
            key: labels.tolist(),
            b"filenames": [b"a.png"] * PER_FILE,
        }
        (folder / stem).write_bytes(pickle.dumps(content, protocol))
    file, key, names = (
        ("batches.meta", b"label_names", CIFAR10_CLASSES)
        if name == "cifar10"
        else ("meta", b"fine_label_names", NAMES100)
    )
    (folder / file).write_bytes(pickle.dumps({key: [each.encode() for each in names]}, protocol))
    return folder


def read_all(split):
    raw, labels = split.read(tf.range(split.size, dtype=tf.int64))
    return raw.numpy(), labels.numpy()


def build(source, folder, **options):
    return build_source(Data(source=source, dir=str(folder), **options))


def assert_one_line(error, *parts):
    assert "\n" not in str(error.value)
    for part in parts:
        assert str(part) in str(error.value)


# CIFAR


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_pixels_and_labels_are_those_of_the_files(tmp_path, name):
    source = build(name, write_binary(tmp_path, name))
    *train, test = cifar_parts(name)
    for split, parts in ((source.train, train), (source.test, [test])):
        raw, labels = read_all(split)
        pixels = np.concatenate([part[1] for part in parts])
        assert split.size == len(pixels) == len(raw)
        assert raw.dtype == np.uint8
        assert labels.dtype == np.int32
        np.testing.assert_array_equal(labels, np.concatenate([part[2] for part in parts]))
        # Of record 2: red of row 3, column 5; blue of row 31, column 0.
        assert raw[2, 3, 5, 0] == pixels[2, 3 * 32 + 5]
        assert raw[2, 31, 0, 2] == pixels[2, 2048 + 31 * 32]
        np.testing.assert_array_equal(raw.transpose(0, 3, 1, 2).reshape(-1, 3072), pixels)
    assert source.image_shape == (32, 32, 3)
    assert source.classes == (CIFAR10_CLASSES if name == "cifar10" else tuple(NAMES100))


def test_cifar100_takes_the_fine_label_and_its_pixels_start_at_byte_two(tmp_path):
    write_binary(tmp_path, "cifar100")
    record = np.arange(3074) % 251
    record[:2] = 7, 93
    record.astype(np.uint8).tofile(tmp_path / "test.bin")
    raw, labels = read_all(build("cifar100", tmp_path).test)
    assert labels.tolist() == [93]
    assert raw[0, 0, 0].tolist() == [2, (2 + 1024) % 251, (2 + 2048) % 251]


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_both_layouts_give_equal_tensors(tmp_path, name, protocol):
    binary = build(name, write_binary(tmp_path / "binary", name))
    pickled = build(name, write_pickles(tmp_path / "pickles", name, protocol))
    assert binary.classes == pickled.classes
    for one, other in ((binary.train, pickled.train), (binary.test, pickled.test)):
        for left, right in zip(read_all(one), read_all(other), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("name", "write", "subfolder"),
    [
        ("cifar10", write_binary, "cifar-10-batches-bin"),
        ("cifar10", write_pickles, "cifar-10-batches-py"),
        ("cifar100", write_binary, "cifar-100-binary"),
        ("cifar100", write_pickles, "cifar-100-python"),
    ],
)
def test_cifar_is_found_in_its_usual_subfolder_and_detected(tmp_path, name, write, subfolder):
    write(tmp_path / subfolder, name)
    assert detect(tmp_path) == detect(tmp_path / subfolder) == name
    assert build(name, tmp_path).test.size == PER_FILE


def test_pickles_of_the_old_numpy_are_read(tmp_path):
    write_pickles(tmp_path, "cifar10")
    for file in tmp_path.glob("*_batch*"):
        file.write_bytes(
            file.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        )
    assert b"numpy.core.multiarray" in (tmp_path / "test_batch").read_bytes()
    np.testing.assert_array_equal(
        read_all(build("cifar10", tmp_path).test)[1], cifar_parts("cifar10")[-1][2]
    )


def test_class_names_are_known_without_their_file(tmp_path):
    (write_binary(tmp_path, "cifar10") / "batches.meta.txt").unlink()
    assert build("cifar10", tmp_path).classes == CIFAR10_CLASSES


def test_a_wrong_number_of_class_names_is_refused(tmp_path):
    (write_binary(tmp_path, "cifar10") / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(UserError) as caught:
        build("cifar10", tmp_path)
    assert_one_line(caught, tmp_path / "batches.meta.txt", "2 class names", "10")


class Runs:
    """A pickle of this makes a folder when it is loaded."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("file", ["data_batch_2", "batches.meta"])
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path, file):
    write_pickles(tmp_path, "cifar10")
    evidence = tmp_path / "it ran"
    (tmp_path / file).write_bytes(pickle.dumps({b"data": Runs(evidence)}, 2))
    with pytest.raises(UserError) as caught:
        build("cifar10", tmp_path)
    assert_one_line(caught, tmp_path / file, "posix.mkdir", "refused")
    assert not evidence.exists()
    pickle.loads((tmp_path / file).read_bytes())
    assert evidence.exists()


@pytest.mark.parametrize("name", ["eval", "exec", "getattr", "__import__", "list.append"])
def test_builtins_that_could_do_harm_are_refused(tmp_path, name):
    write_pickles(tmp_path, "cifar10")
    (tmp_path / "test_batch").write_bytes(b"c__builtin__\n" + name.encode() + b"\n.")
    with pytest.raises(UserError, match="refused"):
        build("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "record"),
    [("cifar10", "data_batch_4.bin", 3073), ("cifar100", "train.bin", 3074)],
)
def test_a_file_cut_by_one_byte_names_file_and_offset(tmp_path, name, file, record):
    path = write_binary(tmp_path, name) / file
    os.truncate(path, PER_FILE * record - 1)
    with pytest.raises(UserError) as caught:
        build(name, tmp_path)
    assert_one_line(
        caught,
        path,
        f"offset {(PER_FILE - 1) * record} ",
        f"{record - 1} of {record} bytes",
        f"{PER_FILE * record - 1} bytes",
    )


def test_an_empty_file_is_named(tmp_path):
    os.truncate(write_binary(tmp_path, "cifar10") / "test_batch.bin", 0)
    with pytest.raises(
        UserError, match=r"test_batch\.bin is cut short: its record at offset 0 has 0 of 3073 bytes"
    ):
        build("cifar10", tmp_path)


def test_a_pickle_cut_anywhere_names_the_file(tmp_path):
    path = write_pickles(tmp_path, "cifar10") / "data_batch_1"
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError) as caught:
            build("cifar10", tmp_path)
        assert_one_line(caught, path, "cut short or damaged", f"of {size})")


@pytest.mark.parametrize(("name", "record", "at"), [("cifar10", 3073, 0), ("cifar100", 3074, 1)])
def test_a_label_out_of_range_names_file_and_offset(tmp_path, name, record, at):
    file = "test_batch.bin" if name == "cifar10" else "test.bin"
    path = write_binary(tmp_path, name) / file
    content = bytearray(path.read_bytes())
    content[2 * record + at] = 100
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        build(name, tmp_path)
    assert_one_line(caught, path, "label 100", f"offset {2 * record + at} ", "record 2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"labels": [0, 1, 2, 10]}, "label 10 in record 3"),
        ({b"labels": [0, 1, 2, -1]}, "label -1 in record 3"),
        ({b"labels": [0, 1, 2]}, "'labels' is not a list of 4"),
        ({b"labels": ["0"] * 4}, "'labels' is not a list of 4"),
        ({b"data": np.zeros((4, 3072), np.float32)}, "not of the type uint8"),
        ({b"data": np.zeros((4, 3071), np.uint8)}, "'data' is not a uint8 array"),
        ({b"data": None}, "'data' is not a uint8 array"),
    ],
)
def test_a_pickle_of_the_wrong_content_is_refused(tmp_path, change, message):
    path = write_pickles(tmp_path, "cifar10") / "data_batch_5"
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()) | change, 2))
    with pytest.raises(UserError) as caught:
        build("cifar10", tmp_path)
    assert_one_line(caught, path, message)


def test_missing_data_say_what_to_do(tmp_path):
    with pytest.raises(UserError) as caught:
        build("cifar10", "")
    assert_one_line(caught, "--data.dir")
    with pytest.raises(UserError) as caught:
        build("cifar10", tmp_path / "nowhere")
    assert_one_line(caught, "no folder", f"`paceline data fetch cifar10 {tmp_path / 'nowhere'}`")
    with pytest.raises(UserError) as caught:
        build("cifar100", tmp_path)
    assert_one_line(
        caught, f"{tmp_path} has no cifar100 files", f"`paceline data fetch cifar100 {tmp_path}`"
    )
    (write_binary(tmp_path, "cifar10") / "data_batch_2.bin").unlink()
    with pytest.raises(UserError) as caught:
        build("cifar10", tmp_path)
    assert_one_line(caught, f"{tmp_path} has no data_batch_2.bin")


@pytest.mark.skipif(not REAL_CIFAR10.is_dir(), reason=f"no CIFAR-10 in {REAL_CIFAR10}")
def test_the_real_cifar10_has_its_known_counts_and_means():
    source = build("cifar10", REAL_CIFAR10)
    description = describe_source(source)
    assert description["splits"]["train"] == {"size": 50_000, "per_class": [5000] * 10}
    assert description["splits"]["test"] == {"size": 10_000, "per_class": [1000] * 10}
    raw, _ = source.train.read(tf.range(0, 50_000, 10, dtype=tf.int64))
    np.testing.assert_allclose(raw.numpy().mean((0, 1, 2)), [125.3, 123.0, 113.9], atol=2)


# Shapes


def test_shapes_are_the_same_bytes_everywhere():
    digest = hashlib.sha256()
    for split in (0, 1):
        images, labels = draw_shapes(split, 300)
        digest.update(images.tobytes() + labels.astype("<i4").tobytes())
    assert digest.hexdigest() == "3c77b02ab0a7e0ac2862caf5606ace3c6c8e46e83b35c489baa0affa5474c181"


def test_a_shape_does_not_depend_on_how_many_are_drawn():
    images, labels = draw_shapes(0, 777)
    fewer, fewer_labels = draw_shapes(0, 250)
    np.testing.assert_array_equal(images[:250], fewer)
    np.testing.assert_array_equal(labels[:250], fewer_labels)


def test_no_test_image_is_a_training_image():
    train, test = ({image.tobytes() for image in draw_shapes(split, 1000)[0]} for split in (0, 1))
    assert len(train) == len(test) == 1000
    assert not train & test


def test_shapes_have_the_sizes_asked_for_and_even_classes():
    description = describe_source(
        build_source(Data(source="shapes", train_size=230, test_size=101))
    )
    assert description["splits"]["train"] == {"size": 230, "per_class": [23] * 10}
    assert description["splits"]["test"] == {"size": 101, "per_class": [11] + [10] * 9}
    with pytest.raises(UserError, match=r"data\.train-size is -1"):
        build_source(Data(source="shapes", train_size=-1))


def test_shapes_cannot_be_told_by_a_linear_model():
    (images, labels), (unseen, truth) = draw_shapes(0, 4000), draw_shapes(1, 1000)

    def features(images):
        small = images.reshape(-1, 16, 2, 16, 2, 3).mean((2, 4)).reshape(len(images), -1) / 128 - 1
        return np.concatenate([small, np.ones((len(images), 1))], axis=1)

    known = features(images)
    weights = np.linalg.solve(
        known.T @ known + 10 * np.eye(known.shape[1]), known.T @ np.eye(10)[labels]
    )
    assert (np.argmax(features(unseen) @ weights, axis=1) == truth).mean() < 0.4


def test_the_whole_of_shapes_is_drawn_in_seconds():
    quarter_s = timeit.timeit(lambda: draw_shapes(0, 6000), timer=time.thread_time, number=1)
    assert quarter_s * 4 < 6


# Arrays


def examples(count, shape=(8, 6, 3), classes=3, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, *shape), np.uint8), np.arange(count) % classes


def test_arrays_come_back_as_they_were_given(tmp_path):
    train, test = examples(20), examples(7, seed=1)
    save_arrays(tmp_path / "new" / "folder", train, test, ["a", "b", "c"])
    source = build("arrays", tmp_path / "new" / "folder")
    assert source.classes == ("a", "b", "c")
    assert source.image_shape == (8, 6, 3)
    for split, (images, labels) in ((source.train, train), (source.test, test)):
        raw, read_labels = read_all(split)
        np.testing.assert_array_equal(raw, images)
        np.testing.assert_array_equal(read_labels, labels)
        assert read_labels.dtype == np.int32
    assert detect(tmp_path / "new" / "folder") == "arrays"
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["folder"]


def test_grey_arrays_get_one_channel_and_classes_get_numbers(tmp_path):
    save_arrays(tmp_path, examples(5, (8, 6)), examples(5, (8, 6), classes=4))
    source = build("arrays", tmp_path)
    assert source.image_shape == (8, 6, 1)
    assert source.classes == ("0", "1", "2", "3")


def test_without_test_arrays_a_tenth_is_held_out(tmp_path):
    images = np.arange(50, dtype=np.uint8).reshape(50, 1, 1) * np.ones((1, 2, 2), np.uint8)
    save_arrays(tmp_path, (images, np.repeat(range(5), 10)))
    source = build("arrays", tmp_path)
    assert (source.train.size, source.test.size) == (45, 5)
    seen = np.concatenate(
        [read_all(source.train)[0][:, 0, 0, 0], read_all(source.test)[0][:, 0, 0, 0]]
    )
    assert sorted(seen) == list(range(50))


def test_saving_again_replaces_the_arrays_but_nothing_else(tmp_path):
    folder = tmp_path / "data"
    save_arrays(folder, examples(20), examples(7))
    save_arrays(folder, examples(10))
    assert sorted(file.name for file in folder.iterdir()) == [
        "train_images.npy",
        "train_labels.npy",
    ]
    (folder / "thesis.txt").write_text("dear to someone")
    with pytest.raises(UserError, match=r"has 'thesis\.txt'"):
        save_arrays(folder, examples(10))
    assert (folder / "thesis.txt").exists()


IMAGES, LABELS = examples(4)


@pytest.mark.parametrize(
    ("train", "test", "classes", "message"),
    [
        ((IMAGES / 255, LABELS), None, None, "float64; give uint8 from 0 to 255"),
        ((IMAGES[0, 0], LABELS), None, None, r"shape \(6, 3\)"),
        ((IMAGES[:0], LABELS[:0]), None, None, "one image or more"),
        ((IMAGES, LABELS[:3]), None, None, "4 train images and 3 train labels"),
        ((IMAGES, LABELS[:, None]), None, None, r"labels\.reshape\(-1\)"),
        ((IMAGES, LABELS * 1.0), None, None, "labels are float64"),
        ((IMAGES, LABELS - 1), None, None, "have a -1; labels count the classes from 0"),
        ((IMAGES, LABELS), (IMAGES[:, 1:], LABELS), None, "make their shapes alike"),
        (
            (IMAGES, LABELS),
            None,
            ["a", "b"],
            "train labels go up to 2, but there are 2 class names",
        ),
        ((IMAGES, LABELS), (IMAGES, LABELS + 1), ["a", "b", "c"], "test labels go up to 3"),
        ((IMAGES, LABELS), None, "abc", "list of one name per class"),
        (IMAGES, None, None, r"pair \(images, labels\)"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_before_anything_is_written(
    tmp_path, train, test, classes, message
):
    with pytest.raises(UserError, match=message):
        save_arrays(tmp_path / "data", train, test, classes)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_arrays_with_a_bad_file_names_it(tmp_path):
    with pytest.raises(UserError, match=r"--data\.dir"):
        build("arrays", "")
    with pytest.raises(UserError, match="no folder"):
        build("arrays", tmp_path / "nowhere")
    save_arrays(tmp_path, examples(20), examples(7))
    np.save(tmp_path / "test_labels.npy", np.array([{}] * 7), allow_pickle=True)
    with pytest.raises(UserError, match=r"test_labels\.npy is not a whole \.npy file of numbers"):
        build("arrays", tmp_path)
    (tmp_path / "test_labels.npy").unlink()
    with pytest.raises(UserError, match=r"no test_labels\.npy"):
        build("arrays", tmp_path)
    os.truncate(tmp_path / "train_images.npy", 1000)
    with pytest.raises(UserError, match=r"train_images\.npy is not a whole"):
        build("arrays", tmp_path)


# The table, the user's own, and what is held out


def test_an_unknown_source_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        build_source(Data(source="cifar-10"))


OWN_SOURCE = """
import tensorflow as tf
from paceline.data.build import Source, Split

def split(size, change=0, kind=tf.int32, raw=tf.uint8):
    return Split(
        size, lambda i: (tf.zeros((tf.shape(i)[0], 4, 4, 3), raw), tf.cast(i % 2, kind) + change)
    )

fine = lambda data: Source(split(data.train_size), split(5), ("even", "odd"), (4, 4, 3))
strings = Split(5, lambda i: (tf.fill(tf.shape(i), b""), tf.cast(i % 2, tf.int32)))
encoded = lambda data: Source(strings, strings, ("a", "b"), None)
nothing = lambda data: None
no_test = lambda data: Source(split(5), None, ("even", "odd"), (4, 4, 3))
empty = lambda data: Source(split(5), split(0), ("even", "odd"), (4, 4, 3))
label = lambda data: Source(split(5), split(500, 1), ("even", "odd"), (4, 4, 3))
long_labels = lambda data: Source(split(5, 0, tf.int64), split(5), ("even", "odd"), (4, 4, 3))
floats = lambda data: Source(split(5, raw=tf.float32), split(5), ("even", "odd"), (4, 4, 3))
other_shape = lambda data: Source(split(5), split(5), ("even", "odd"), (5, 5, 3))
no_classes = lambda data: Source(split(5), split(5), (), (4, 4, 3))
flat = lambda data: Source(split(5), split(5), ("even", "odd"), (4, 4))
python = lambda data: Source(
    Split(5, lambda i: (i.numpy(), i)), split(5), ("even", "odd"), (4, 4, 3)
)
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own_source.py").write_text(OWN_SOURCE)
    return lambda function: build_source(
        Data(build=f"{tmp_path}/own_source.py:{function}", train_size=9)
    )


def test_a_source_of_the_users_own_is_built_with_the_data(own):
    assert own("fine").train.size == 9
    assert own("encoded").image_shape is None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", "returned a NoneType; it must return a paceline.Source"),
        ("no_test", "test is a NoneType"),
        ("empty", "the test split has size 0"),
        ("label", "label 2 for example 7; labels are 0 to 1"),
        ("long_labels", r"labels int64 \(5,\); they must be int32 \(5,\)"),
        ("floats", "gave float32 .*; it must be uint8"),
        ("other_shape", r"must be uint8 \(5, 5, 5, 3\)"),
        ("no_classes", r"classes is \(\)"),
        ("flat", r"image_shape is \(4, 4\)"),
        ("python", "read of the train split failed in a compiled step"),
    ],
)
def test_what_a_source_of_the_users_own_gives_is_checked(own, function, message):
    with pytest.raises(UserError, match=message) as caught:
        own(function)
    assert_one_line(caught, f"own_source.py:{function}")


def counting_source(size):
    """A source whose images are one pixel: their own number, in two bytes."""
    numbers = np.arange(size)
    images = (
        np.stack([numbers % 256, numbers // 256], axis=-1).astype(np.uint8).reshape(size, 1, 1, 2)
    )
    split = in_memory(images, np.zeros(size, np.int32))
    return Source(split, split, ("only",), (1, 1, 2))


def numbers_of(split):
    raw, _ = read_all(split)
    return raw[:, 0, 0, 0].astype(int) + 256 * raw[:, 0, 0, 1].astype(int)


@given(
    st.integers(2, 3000).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size - 1)))
)
@settings(max_examples=40, deadline=None)
def test_what_is_held_out_is_disjoint_and_with_the_rest_covers_all(sizes):
    size, validation = sizes
    train, held_out = hold_out(counting_source(size), validation)
    assert (train.size, held_out.size) == (size - validation, validation)
    assert sorted([*numbers_of(train), *numbers_of(held_out)]) == list(range(size))


def test_what_is_held_out_is_fair_on_sorted_data_and_pinned():
    _, held_out = hold_out(counting_source(10_000), 1000)
    chosen = numbers_of(held_out)
    assert all(60 < np.count_nonzero(chosen // 1000 == tenth) < 140 for tenth in range(10))
    assert chosen[:6].tolist() == [886, 4804, 173, 7859, 5704, 7362]


def test_holding_out_works_in_a_compiled_step():
    train, _ = hold_out(counting_source(100), 10)
    compiled = tf.function(train.read)(tf.range(90, dtype=tf.int64))[0]
    np.testing.assert_array_equal(compiled, read_all(train)[0])


def test_holding_out_nothing_or_everything():
    source = counting_source(10)
    assert hold_out(source, 0) == (source.train, None)
    for validation in (10, 11):
        with pytest.raises(
            UserError, match=f"data.validation is {validation}; of 10 training examples, 0 to 9"
        ):
            hold_out(source, validation)


# Info


def test_a_description_counts_every_label(tmp_path):
    labels = np.array([0, 0, 2] + [1] * 3000)
    save_arrays(
        tmp_path, (np.zeros((3003, 4, 4), np.uint8), labels), examples(5, (4, 4)), ["a", "bb", "c"]
    )
    description = describe_source(build("arrays", tmp_path))
    assert description == {
        "image_shape": [4, 4, 1],
        "classes": ["a", "bb", "c"],
        "splits": {
            "train": {"size": 3003, "per_class": [2, 3000, 1]},
            "test": {"size": 5, "per_class": [2, 2, 1]},
        },
    }
    lines = description_lines(description)
    assert lines[0].endswith("4 x 4 x 1")
    assert lines[-2].split() == ["bb", "3,000", "2"]


def test_a_label_outside_the_classes_is_told():
    split = in_memory(np.zeros((3, 2, 2, 1), np.uint8), np.array([0, 1, 2]))
    with pytest.raises(UserError, match="there is a label 2; labels of 2 classes"):
        describe_source(Source(split, split, ("a", "b"), (2, 2, 1)))


def test_a_folder_of_no_or_two_kinds_is_not_guessed_at(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        detect(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no data set of a known kind"):
        detect(tmp_path)
    write_binary(tmp_path / "cifar-10-batches-bin", "cifar10")
    write_pickles(tmp_path / "cifar-100-python", "cifar100")
    with pytest.raises(UserError, match="several data sets: cifar10, cifar100"):
        detect(tmp_path)


def test_a_split_is_a_split_by_either_name():
    assert Split is sys.modules["paceline.data.source"].Split


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_names_of_the_test_split_that_people_use(tmp_path, name):
    from paceline.formats.image_folder import find_images
    from paceline.formats.tfrecord.shards import train_and_test

    for split in ("train", name):
        folder = tmp_path / "pictures" / split / "cat"
        folder.mkdir(parents=True)
        (folder / "1.jpg").touch()
        (tmp_path / f"{split}.tfrecord").touch()
    assert len(find_images(tmp_path / "pictures", 0.0).test) == 1
    assert list(train_and_test(str(tmp_path))) == ["train", name]
