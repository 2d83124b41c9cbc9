"""CIFAR in both layouts is read as it is, and damage is one line."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from cifar_folders import cifar_parts, write_binary, write_pickles
from helpers import TIMEOUT_S
from image_folders import build, read_all
from paceline.data.build_source import build_source
from paceline.errors import UserError
from paceline.experiment.data import Data
from paceline.formats.cifar import CLASSES, LAYOUTS
from paceline.formats.detect import detect
from record_folders import assert_one_line

WRITERS = [
    pytest.param(lambda folder, name: write_binary(folder, name), id="binary"),
    pytest.param(lambda folder, name: write_pickles(folder, name, 2), id="protocol 2"),
    pytest.param(lambda folder, name: write_pickles(folder, name, 4), id="protocol 4"),
]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_pixels_and_labels_are_those_of_the_files(tmp_path, name, write):
    source = build(name, write(tmp_path, name))
    *train, test = cifar_parts(name)
    for split, parts in ((source.train, train), (source.test, [test])):
        raw, labels = read_all(split)
        pixels = np.concatenate([part[1] for part in parts])
        assert (raw.dtype, labels.dtype, split.size) == (np.uint8, np.int32, len(pixels))
        np.testing.assert_array_equal(labels, np.concatenate([part[2] for part in parts]))
        # Of record 2: red of row 3, column 5; blue of row 31, column 0.
        assert raw[2, 3, 5, 0] == pixels[2, 3 * 32 + 5]
        assert raw[2, 31, 0, 2] == pixels[2, 2048 + 31 * 32]
        np.testing.assert_array_equal(raw.transpose(0, 3, 1, 2).reshape(-1, 3072), pixels)
    assert source.image_shape == (32, 32, 3)
    assert source.classes == tuple(CLASSES[name].split())


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.folder)
def test_cifar_is_found_in_its_usual_subfolder_and_detected(tmp_path, layout):
    write = write_binary if layout.label_bytes else write_pickles
    write(tmp_path / layout.folder, layout.source)
    assert detect(tmp_path) == detect(tmp_path / layout.folder) == layout.source


def test_a_pattern_chooses_training_files_and_a_file_can_be_the_test_split(tmp_path):
    write_binary(tmp_path, "cifar10")
    whole = build("cifar10", tmp_path)
    some = build("cifar10", tmp_path / "data_batch_[12]*")
    assert (some.train.size, some.test.size) == (whole.train.size * 2 // 5, whole.test.size)
    own = Data("cifar10", str(tmp_path / "data_batch*"), test=str(tmp_path / "data_batch_5.bin"))
    chosen = build_source(own)
    assert chosen.train.size == whole.train.size * 4 // 5
    np.testing.assert_array_equal(read_all(chosen.test)[1], [*cifar_parts("cifar10")][4][2])
    with pytest.raises(UserError, match=r"no training file of .* is named like 'none\*'"):
        build("cifar10", tmp_path / "none*")
    with pytest.raises(UserError, match="only CIFAR's test file can be chosen"):
        build_source(Data(test="test_batch.bin"))


def test_class_names_are_those_of_the_authors():
    ten, hundred = (CLASSES[name].split() for name in ("cifar10", "cifar100"))
    assert (len(ten), ten[3], len(hundred), hundred[13]) == (10, "cat", 100, "bus")
    assert hundred == sorted(set(hundred))


class Runs:
    """A pickle of this makes a folder when it is loaded."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path):
    path, evidence = write_pickles(tmp_path, "cifar10") / "data_batch_2", tmp_path / "it ran"
    path.write_bytes(pickle.dumps({b"data": Runs(evidence)}, 2))
    with pytest.raises(UserError) as caught:
        build("cifar10", tmp_path)
    assert_one_line(caught.value, path, "'data' is not a uint8 array")
    assert not evidence.exists()


OBJECT_ARRAY = (
    b"\x80\x02cnumpy._core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85q\x02"
    b"C\x01bq\x03\x87q\x04Rq\x05(K\x01K\x01\x85q\x06cnumpy\ndtype\nq\x07X\x02\x00\x00\x00O8q\x08"
    b"\x89\x88\x87q\tRq\n(K\x03X\x01\x00\x00\x00|q\x0bNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tq\x0c"
    b"b\x89C\x08AAAAAAAAq\rtq\x0eb."
)
"""Raw bytes that NumPy takes for a pointer to an object: reading one ends the process."""
HOSTILE = [
    OBJECT_ARRAY,
    b"cbuiltins\nbytes\n(I1000000000000\ntR.",
    b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of two billion places
    b"\x80\x03\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    b"cnumpy\nndarray\n(I1000000000\nttR.",
    b"cos\nsystem\n(S'true'\ntR.",
    b"\x80\x02})" + b"\x85" * 500_000 + b"Ns.",  # the hash of nested tuples ends the process
]


def test_hostile_pickles_are_refused_within_little_memory(tmp_path):
    code = (
        "import resource, sys; from pathlib import Path; from paceline.formats.cifar import *\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "for file in sys.argv[1:]:\n"
        "    try: read_file(LAYOUTS[1], Path(file))\n"
        "    except UserError: print('refused')\n"
    )
    for number, content in enumerate(HOSTILE):
        (tmp_path / str(number)).write_bytes(content)
    command = [sys.executable, "-c", code, *sorted(map(str, tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, "refused\n" * len(HOSTILE)), done


def set_byte(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] = 100
    path.write_bytes(content)


CUT = "3072 of 3073 bytes (12291 bytes in all)"


@pytest.mark.parametrize(
    ("name", "file", "spoil", "words"),
    [
        ("cifar10", "data_batch_4.bin", lambda file: os.truncate(file, 4 * 3073 - 1), CUT),
        ("cifar10", "test_batch.bin", lambda file: os.truncate(file, 0), "0 of 3073 bytes"),
        (
            "cifar100",
            "test.bin",
            lambda file: set_byte(file, 2 * 3074 + 1),
            "label 100 in record 2",
        ),
        ("cifar10", "data_batch_2.bin", lambda file: file.unlink(), "has no data_batch_2.bin"),
    ],
)
def test_a_bad_binary_file_is_one_line(tmp_path, name, file, spoil, words):
    spoil(write_binary(tmp_path, name) / file)
    with pytest.raises(UserError) as caught:
        build(name, tmp_path)
    assert_one_line(caught.value, tmp_path, file, words)


def test_a_pickle_cut_anywhere_names_the_file(tmp_path):
    path = write_pickles(tmp_path, "cifar10") / "data_batch_1"
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError) as caught:
            build("cifar10", tmp_path)
        assert_one_line(caught.value, path, "cut short or damaged")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"labels": [0, 1, 2, -1]}, "label -1 in record 3"),
        ({b"labels": [0, 1, 2, 10**30]}, f"label {10**30} in record 3"),
        ({b"labels": [0, 1, 2]}, "'labels' has 3 whole numbers for 4 images"),
        ({b"labels": ["0"] * 4}, "'labels' has 0 whole numbers for 4 images"),
        ({b"data": np.zeros((4, 3072), np.float32)}, "'data' is not a uint8 array"),
        ({b"data": np.ones((4, 3072), np.uint8, order="F")}, "'data' is not a uint8 array"),
        ({b"data": np.zeros((4, 3071), np.uint8)}, "'data' is not a uint8 array"),
        ({b"data": None}, "'data' is not a uint8 array"),
    ],
)
def test_a_pickle_of_the_wrong_content_is_refused(tmp_path, change, message):
    path = write_pickles(tmp_path, "cifar10") / "data_batch_5"
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()) | change, 2))
    with pytest.raises(UserError) as caught:
        build("cifar10", tmp_path)
    assert_one_line(caught.value, path, message)


@pytest.mark.parametrize(
    ("folder", "words"), [("", "--data.dir"), ("no", "no folder no"), (".", "no cifar10 files")]
)
def test_missing_data_say_what_to_do(tmp_path, monkeypatch, folder, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        build("cifar10", folder)
    assert_one_line(caught.value, words, f"`paceline data fetch cifar10 {folder or 'DIR'}`")
