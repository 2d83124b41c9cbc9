"""The sum over replicas has one order, in NumPy as well as in any graph of TensorFlow."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf

from paceline.maths.replica import add
from paceline.maths.sums import divided_tree, subtrees, tree_sum


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array, "<f4").data).hexdigest()


def tree_by_numpy(values):
    """float32, pair by pair."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return np.add(tree_by_numpy(values[:half]), tree_by_numpy(values[half:]), dtype=np.float32)


def leaves(replicas):
    """Of very different sizes, so that another order rounds differently."""
    random = np.random.default_rng(replicas)
    return (
        random.normal(size=(replicas, 5000)) * 10.0 ** random.integers(-3, 4, (replicas, 5000))
    ).astype(np.float32)


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_the_tree_equals_numpys_inside_a_function(replicas):
    values = leaves(replicas)

    @tf.function(autograph=False)
    def total(x):
        return tree_sum(tf.unstack(x), add)

    assert sha256(total(tf.constant(values)).numpy()) == sha256(tree_by_numpy(values))


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_the_tree_equals_numpys_inside_a_while_loop_of_computed_values(replicas):
    """As an engine uses it: leaves are made in the same graph, where the optimizer would like to
    merge the additions."""
    values = leaves(replicas)

    @tf.function(autograph=False)
    def three_rounds(x):
        def body(i, carried):
            made = [carried[k] * 0.5 for k in range(replicas)]
            return i + 1, carried * 0.25 + tree_sum(made, add) / replicas

        return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]

    expected = values
    for _ in range(3):
        expected = expected * np.float32(0.25) + tree_by_numpy(
            expected * np.float32(0.5)
        ) / np.float32(replicas)
    assert sha256(three_rounds(tf.constant(values)).numpy()) == sha256(expected)


@pytest.mark.parametrize("replicas", [4, 8])
def test_another_order_would_give_another_digest(replicas):
    """So that the tests above can fail."""
    values = leaves(replicas)
    shuffled = values[[0, 2, 1, *range(3, replicas)]]
    others = (np.cumsum(values, axis=0, dtype=np.float32)[-1], tree_by_numpy(shuffled))
    assert sha256(tree_by_numpy(values)) not in map(sha256, others)


@pytest.mark.parametrize(
    ("replicas", "workers", "most", "by_rounding"),
    [(8, 5, 1, 2), (13, 5, 1, 3), (16, 9, 1, 2), (32, 9, 2, 3), (64, 5, 4, 5)],
)
def test_workers_send_fewer_subtrees_than_if_replicas_were_divided_by_rounding(
    replicas, workers, most, by_rounding
):
    bounds = [replicas * k // workers for k in range(workers + 1)]
    rounded = [subtrees(share, (0, replicas)) for share in pairwise(bounds)]
    assert max(map(len, divided_tree(replicas, workers))) == most
    assert max(map(len, rounded)) == by_rounding
