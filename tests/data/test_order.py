"""Which examples a step sees: slices cover the data, for any number of replicas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augmented import global_batch, global_batches, sha256

# Renewed as in test_batches.py.
GOLDEN_ORDER = "29f9d8dce13fcc6535feab1a058128fe17a5bf51231435d68cf7e0dc45ca0389"


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_slices_of_an_epoch_are_disjoint_and_cover_the_data(data):
    replicas = data.draw(st.sampled_from([1, 2, 4, 8]))
    batch_size = replicas * data.draw(st.integers(1, 5))
    size = data.draw(st.integers(batch_size, batch_size * 6))
    seed, epoch = data.draw(st.integers(0, 2**31)), data.draw(st.integers(0, 1000))
    steps = size // batch_size
    seen = global_batches(
        range(epoch * steps, (epoch + 1) * steps), size, replicas, batch_size, seed
    ).ravel()
    assert seen.min() >= 0
    assert seen.max() < size
    assert len(set(seen.tolist())) == len(seen) == steps * batch_size
    if size % batch_size == 0:
        assert set(seen.tolist()) == set(range(size))


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(st.integers(8, 200), st.integers(0, 50), st.integers(0, 2**31))
def test_the_global_batch_is_the_same_for_every_number_of_replicas(size, step, seed):
    first, *others = [
        global_batch(step, size, replicas, 8, seed).tolist() for replicas in (1, 2, 4, 8)
    ]
    assert others == [first] * 3


def test_another_epoch_and_another_seed_have_another_order():
    first, again = global_batch(0, 640, 2, 64), global_batch(0, 640, 2, 64)
    np.testing.assert_array_equal(first, again)
    for other in (global_batch(10, 640, 2, 64), global_batch(0, 640, 2, 64, seed=1)):
        assert (first == other).mean() < 0.1
    assert (np.diff(first) == 1).mean() < 0.1  # not merely shifted


def test_a_golden_digest_pins_the_order():
    order = global_batches([0, 389, 390, 10_000], 50_000, 2, 128, seed=7)
    assert sha256(order.astype("<i8")) == GOLDEN_ORDER
