"""A source of the user's own is checked before anything is trained on it."""

import pytest

from paceline.data.build_source import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from record_folders import assert_one_line

OWN_SOURCE = """
import tensorflow as tf
from paceline.data.source import Source, Split

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


def test_an_unknown_source_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        build_source(Data(source="cifar-10"))


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
        ("no_classes", "label 0 for example 0; labels are 0 to -1"),
        ("flat", r"must be uint8 \(5, 4, 4\)"),
        ("python", "read of the train split failed in a compiled step"),
    ],
)
def test_what_a_source_of_the_users_own_gives_is_checked(own, function, message):
    with pytest.raises(UserError, match=message) as caught:
        own(function)
    assert_one_line(caught.value, f"own_source.py:{function}")
