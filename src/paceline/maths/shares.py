"""Which replicas a worker computes, and which subtrees of the sum over replicas are in its share.

The tree of the sum halves the range of replicas again and again (`maths.tree`). A worker owns a
contiguous range, its share. It adds up the largest whole subtrees in its share, so that the sum
over all workers has the tree's order for any number of workers. No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

Span = tuple[int, int]
"""A range of replicas: the first one, and the one after the last."""


def halves(span: Span) -> tuple[Span, Span]:
    """Return the two subtrees of a subtree of more than one replica."""
    first, last = span
    middle = first + (last - first) // 2
    return (first, middle), (middle, last)


def level_of(tree: Span, count: int) -> list[Span]:
    """Return the subtrees of the level of the tree that has `count` or more of them."""
    level = [tree]
    while len(level) < count:
        level = [half for span in level for half in halves(span)]
    return level


def subtrees(share: Span, tree: Span) -> list[Span]:
    """Return the largest subtrees of `tree` that are in the share, from left to right."""
    if share[0] >= tree[1] or share[1] <= tree[0]:
        return []
    if share[0] <= tree[0] and tree[1] <= share[1]:
        return [tree]
    left, right = halves(tree)
    return subtrees(share, left) + subtrees(share, right)


@cache
def shares(replicas: int, workers: int) -> tuple[Span, ...]:
    """Return the share of each worker; sizes differ by at most one.

    Of all such divisions, this is one with the fewest subtrees in a share, because each subtree is
    one more vector to send: a share of 2, 4, 8 ... workers is always one subtree.
    """
    smallest, larger = divmod(replicas, workers)
    # (replicas divided, larger shares used) -> (most subtrees in a share, all subtrees, shares)
    best: dict[tuple[int, int], tuple[int, int, tuple[Span, ...]]] = {(0, 0): (0, 0, ())}
    for _ in range(workers):
        following: dict[tuple[int, int], tuple[int, int, tuple[Span, ...]]] = {}
        for (first, used), (most, total, before) in best.items():
            for more in (0, 1) if used < larger else (0,):
                span = first, first + smallest + more
                count = len(subtrees(span, (0, replicas)))
                found = max(most, count), total + count, (*before, span)
                key = span[1], used + more
                if key not in following or found[:2] < following[key][:2]:
                    following[key] = found
        best = following
    return best[replicas, larger][2]


@cache
def divided_tree(replicas: int, workers: int) -> tuple[tuple[Span, ...], ...]:
    """Return the subtrees of each worker's share."""
    return tuple(tuple(subtrees(share, (0, replicas))) for share in shares(replicas, workers))


def relative(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Return the subtrees of a share as if its first replica were replica 0.

    Shares that are equal in this way can use the same compiled graph.
    """
    first = spans[0][0]
    return tuple((start - first, stop - first) for start, stop in spans)


def mean_factor(replicas: int) -> np.float32:
    """Return the factor that turns the sum over the replicas into their mean.

    A division by a constant would not be the same everywhere: TensorFlow's graph optimizer makes
    this product of it, NumPy does not. For 2, 4, 8 ... replicas both give the same bits.
    """
    return np.float32(1) / np.float32(replicas)


def add_subtrees(tree: Span, sums: Mapping[Span, Any], add: Callable[[Any, Any], Any]) -> Any:
    """Return the sum over a tree from the sums of subtrees that divide it."""
    if tree in sums:
        return sums[tree]
    left, right = halves(tree)
    return add(add_subtrees(left, sums, add), add_subtrees(right, sums, add))
