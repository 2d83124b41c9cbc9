"""What is held out of the training split."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.source import Source, hold_out, in_memory
from paceline.errors import UserError


def read_all(split):
    raw, labels = split.read(tf.range(split.size, dtype=tf.int64))
    return raw.numpy(), labels.numpy()


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


def test_holding_out_nothing_or_everything():
    source = counting_source(10)
    assert hold_out(source, 0) == (source.train, None)
    for validation in (10, 11):
        with pytest.raises(
            UserError, match=f"data.validation is {validation}; of 10 training examples, 0 to 9"
        ):
            hold_out(source, validation)
