"""The sum over replicas in one fixed order, and which part of it each worker computes.

Floating-point addition is not associative, so the order is part of the experiment: the tree halves
the range of replicas until one is left, and adds the halves. A worker owns a contiguous range of
replicas, its share. It adds up the largest subtrees in its share, so that the sum over all workers
has the order of the tree for any number of workers. No TensorFlow: the addition is passed in.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeVar

import numpy as np

T = TypeVar("T")

ALIGNED = 16
"""Shards are multiples of this many floats: then TensorFlow cuts a vector without a copy."""

Span = tuple[int, int]
"""A range of replicas: the first one, and the one after the last."""
Add = Callable[[T, T], T]
"""`maths.replica.add` for tensors, `np.add` for arrays."""


def halves(span: Span) -> tuple[Span, Span]:
    """Return the two subtrees of a subtree of more than one replica."""
    first, last = span
    middle = first + (last - first) // 2
    return (first, middle), (middle, last)


def add_subtrees(tree: Span, sums: Mapping[Span, T], add: Add[T]) -> T:
    """Return the sum over a tree from the sums of subtrees that divide it."""
    if tree in sums:
        return sums[tree]
    left, right = halves(tree)
    return add(add_subtrees(left, sums, add), add_subtrees(right, sums, add))


def tree_sum(values: Sequence[T], add: Add[T]) -> T:
    """Return the sum of the values of all replicas."""
    leaves = {(k, k + 1): value for k, value in enumerate(values)}
    return add_subtrees((0, len(values)), leaves, add)


def subtree_sums(values: Sequence[T], spans: Sequence[Span], add: Add[T]) -> list[T]:
    """Return the sums of the subtrees of a share from the values of all its replicas."""
    first = spans[0][0]
    return [tree_sum(values[start - first : stop - first], add) for start, stop in spans]


def mean_factor(replicas: int) -> np.float32:
    """Return the factor that turns the sum over the replicas into their mean.

    A division by a constant would not be the same everywhere: TensorFlow's graph optimizer makes
    this product of it, NumPy does not. For 2, 4, 8 ... replicas both give the same bits.
    """
    return np.float32(1) / np.float32(replicas)


def subtrees(share: Span, tree: Span) -> list[Span]:
    """Return the largest subtrees of `tree` that are in the share, from left to right."""
    if share[0] >= tree[1] or share[1] <= tree[0]:
        return []
    if share[0] <= tree[0] and tree[1] <= share[1]:
        return [tree]
    left, right = halves(tree)
    return subtrees(share, left) + subtrees(share, right)


@cache
def divided_tree(replicas: int, workers: int) -> tuple[tuple[Span, ...], ...]:
    """Return the subtrees of each worker's share; sizes of shares differ by at most one.

    Of all such divisions, this is one with the fewest subtrees in a share, because each subtree is
    one more vector to send. A division by rounding would send more for every second number of
    workers: 32 replicas of 9 workers have 3 subtrees in a share instead of 2.
    """
    smallest, larger = divmod(replicas, workers)
    # (replicas divided, larger shares used) -> (most subtrees in a share, all subtrees, shares)
    best: dict[Span, tuple[int, int, tuple[tuple[Span, ...], ...]]] = {(0, 0): (0, 0, ())}
    for _ in range(workers):
        found: dict[Span, tuple[int, int, tuple[tuple[Span, ...], ...]]] = {}
        for (first, used), (most, total, before) in best.items():
            for more in (0, 1) if used < larger else (0,):
                last = first + smallest + more
                spans = tuple(subtrees((first, last), (0, replicas)))
                cost, key = (max(most, len(spans)), total + len(spans)), (last, used + more)
                if key not in found or cost < found[key][:2]:
                    found[key] = *cost, (*before, spans)
        best = found
    return best[replicas, larger][2]
