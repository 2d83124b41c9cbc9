"""tf.train.Example without TensorFlow agrees with TensorFlow's own."""

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.formats.tfrecord import example

NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(st.binary(max_size=40), st.text(max_size=20), NUMBERS)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=6))
def test_examples_are_encoded_to_the_bytes_of_tf_train_example(features):
    theirs, expected = tf.train.Example(), {}
    for key, value in features.items():
        value = value.encode() if isinstance(value, str) else value
        feature = theirs.features.feature[key]
        kind = feature.int64_list if isinstance(value, int) else feature.bytes_list
        kind.value.append(value)
        expected[key] = [value]
    encoded = example.encode(features)
    assert encoded == theirs.SerializeToString(deterministic=True)
    assert example.decode(encoded) == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False)), st.lists(NUMBERS), st.lists(st.binary()))
def test_every_kind_of_feature_is_decoded(floats, numbers, blobs):
    theirs = tf.train.Example()
    theirs.features.feature["f"].float_list.value.extend(floats)
    theirs.features.feature["i"].int64_list.value.extend(numbers)
    theirs.features.feature["b"].bytes_list.value.extend(blobs)
    assert example.decode(theirs.SerializeToString()) == {"f": floats, "i": numbers, "b": blobs}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff\xff\xff garbage", id="text"),
        pytest.param(b"\x0a\x7f", id="cut"),
        pytest.param(b"\x0a\x02\x0a\x05", id="cut inside"),
        pytest.param(b"\x07", id="wire type 7"),
        pytest.param(b"\x80" * 11, id="endless number"),
        pytest.param(b"\x0b" * 100_000, id="nested groups"),
        pytest.param(b"\x0a\x05\x0a\x03\x0a\x01\xff", id="not UTF-8"),
    ],
)
def test_what_is_not_an_example_is_refused(data):
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        example.decode(data)
