"""The sum over replicas has one order, in NumPy as well as in any graph of TensorFlow."""

from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from paceline.maths.replica import add
from paceline.maths.sums import Span, add_subtrees, divided_tree, halves, subtrees, tree_sum
from tree import assert_same_bits, leaves, tree_by_numpy

UP_TO_32 = [(replicas, workers) for replicas in range(1, 33) for workers in range(1, replicas + 1)]


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_the_tree_equals_numpys_inside_a_while_loop_of_computed_values(replicas):
    """As an engine uses it: leaves are made in the same graph, where the optimizer would like to
    merge the additions."""
    values = np.array(leaves(replicas, 5000))

    @tf.function(autograph=False)
    def three_rounds(x):
        def body(i, carried):
            made = [carried[k] * 0.5 for k in range(replicas)]
            return i + 1, carried * 0.25 + tree_sum(made, add) / replicas

        return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]

    expected = values
    for _ in range(3):
        total = tree_by_numpy(list(expected * np.float32(0.5)))
        expected = expected * np.float32(0.25) + total / np.float32(replicas)
    assert_same_bits(three_rounds(tf.constant(values)).numpy(), expected)


@pytest.mark.parametrize("replicas", [4, 8])
def test_another_order_would_give_other_bits(replicas):
    """So that the tests here can fail."""
    values = leaves(replicas, 5000)
    shuffled = [values[k] for k in (0, 2, 1, *range(3, replicas))]
    others = (np.cumsum(values, axis=0, dtype=np.float32)[-1], tree_by_numpy(shuffled))
    assert not any(np.array_equal(tree_by_numpy(values), other) for other in others)


@st.composite
def divided(draw: st.DrawFn) -> tuple[int, Span]:
    """A number of replicas and a range of them."""
    replicas = draw(st.integers(1, 70))
    start = draw(st.integers(0, replicas - 1))
    return replicas, (start, draw(st.integers(start + 1, replicas)))


def is_subtree(span: Span, tree: Span) -> bool:
    return span == tree or (
        tree[1] - tree[0] > 1 and any(is_subtree(span, half) for half in halves(tree))
    )


@given(divided())
def test_the_subtrees_of_a_range_cover_it_are_disjoint_and_as_large_as_possible(
    case: tuple[int, Span],
) -> None:
    replicas, share = case
    found = subtrees(share, (0, replicas))
    assert [k for start, stop in found for k in range(start, stop)] == list(range(*share))
    assert all(is_subtree(span, (0, replicas)) for span in found)
    for left, right in pairwise(found):
        assert not is_subtree((left[0], right[1]), (0, replicas)), "two could have been one"


def test_for_every_number_of_workers_shares_are_even_and_add_up_to_numpys_tree() -> None:
    for replicas, workers in UP_TO_32:
        found, values = divided_tree(replicas, workers), leaves(replicas)
        spans = [span for share in found for span in share]
        assert [k for span in spans for k in range(*span)] == list(range(replicas))
        sizes = {share[-1][1] - share[0][0] for share in found}
        assert max(sizes) - min(sizes) <= 1, (replicas, workers)
        sums = {(start, stop): tree_by_numpy(values[start:stop]) for start, stop in spans}
        assert_same_bits(add_subtrees((0, replicas), sums, np.add), tree_by_numpy(values))


def test_a_share_of_2_4_8_workers_is_one_subtree() -> None:
    for replicas, workers in UP_TO_32:
        if workers & (workers - 1) == 0:
            assert {len(spans) for spans in divided_tree(replicas, workers)} == {1}


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
