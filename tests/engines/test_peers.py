"""What workers exchange through their sockets, and what happens at an end.

tests/claims/test_any_workers.py compares its sums with those of one process.
"""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from paceline.engines.peers import Peers, WorkerGone, find_neighbors
from paceline.messages import NEIGHBORS
from paceline.worker_process import _lost_another_worker


def two() -> tuple[Peers, Peers, socket.socket]:
    """Two workers of one machine, and the end of the second."""
    one, other = socket.socketpair()
    return Peers(0, {1: one}), Peers(1, {0: other}), other


def at_once(*calls) -> list:
    with ThreadPoolExecutor() as pool:
        return [each.result(20) for each in [pool.submit(call) for call in calls]]


@pytest.mark.parametrize("count", [1, 7, 5_000_000])
def test_everyone_gets_the_vectors_of_all_in_their_order(count: int) -> None:
    one, other, _ = two()
    vectors = [np.arange(count, dtype=np.int64), np.full(count, 5, np.int64)]
    for rows in at_once(lambda: one.gather(vectors[0]), lambda: other.gather(vectors[1])):
        assert np.array_equal(rows, vectors)


def test_the_end_of_a_worker_is_an_error_at_once() -> None:
    one, _, end = two()
    end.close()
    with pytest.raises(WorkerGone):
        one.gather(np.zeros(3))


def test_an_exchange_can_be_ended_while_another_thread_waits_in_it() -> None:
    one, _, _ = two()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(one.gather, np.zeros(3))
        while not one._exchanges:
            assert not waiting.done()
        one.abort()
        with pytest.raises(WorkerGone):
            waiting.result(20)


def test_workers_in_different_exchanges_are_noticed() -> None:
    one, other, _ = two()
    one._exchanges = 7
    with pytest.raises(RuntimeError, match="worker 1 is in another exchange"):
        at_once(lambda: one.gather(np.zeros(3)), lambda: other.gather(np.zeros(3)))


def test_a_worker_that_is_gone_is_not_the_fault_of_the_one_that_reports_it() -> None:
    one, _, end = two()
    end.close()
    with pytest.raises(tf.errors.OpError) as found:
        tf.function(lambda: one.total(2, 0, [tf.zeros([5])]))()
    assert _lost_another_worker(found.value)
    assert _lost_another_worker(WorkerGone("worker 1 is gone"))
    assert not _lost_another_worker(tf.errors.UnknownError(None, None, "something else"))


def test_a_sum_that_is_still_used_is_not_written_over_and_one_that_is_not_is_used_again() -> None:
    peers, size = two()[:2], 1000
    totals = [
        tf.function(lambda own, index=index: peers[index].total(2, index, [own]))
        for index in (0, 1)
    ]

    def sums(value: float) -> list[tf.Tensor]:
        return at_once(*(lambda i=i: totals[i](tf.fill([size], value + i)) for i in (0, 1)))

    kept = {value: sums(value) for value in (1.0, 2.0, 3.0)}
    made = [len(each._vectors) for each in peers]
    for value in range(20):
        assert np.array_equal(sums(float(value))[1], np.full(size, 2.0 * value + 1))
    for value, both in kept.items():
        assert np.array_equal(both, np.full([2, size], 2 * value + 1))
    assert all(len(each._vectors) <= most + 4 for each, most in zip(peers, made, strict=True))


def test_only_a_worker_that_was_given_neighbors_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NEIGHBORS, raising=False)
    assert find_neighbors(0) is None
    own, end = socket.socketpair()
    passed = own.detach()
    monkeypatch.setenv(NEIGHBORS, str(passed))
    found, other = find_neighbors(1), Peers(0, {1: end})
    assert found
    assert NEIGHBORS not in os.environ, "a child of this process has none"
    assert not os.get_inheritable(passed)
    for rows in at_once(lambda: found.gather(np.ones(1)), lambda: other.gather(np.zeros(1))):
        assert np.array_equal(rows, [[0.0], [1.0]])
