"""The memory that workers of one machine share: who waits for whom, and what happens at an end.

tests/claims/test_any_workers.py compares its sums with those of one process.
"""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest
import tensorflow as tf

from paceline.engines.shared_memory import PIECE, Neighbors, WorkerGone, find_neighbors
from paceline.messages import NEIGHBORS
from paceline.worker_process import _lost_another_worker


def two() -> tuple[Neighbors, Neighbors, socket.socket]:
    """Two workers that share memory, and the end of the second."""
    one, other = socket.socketpair()
    memory = os.memfd_create("test")
    return Neighbors(0, memory, {1: one}), Neighbors(1, memory, {0: other}), other


def test_nobody_goes_on_before_all_have_come() -> None:
    early, late, _ = two()
    went_on = threading.Event()
    thread = threading.Thread(target=lambda: (early.meet(), went_on.set()))
    thread.start()
    assert not went_on.wait(0.2)
    late.meet()
    assert went_on.wait(5.0)
    thread.join()


def test_both_see_the_same_floats_and_different_tables_never_overlap() -> None:
    one, other, _ = two()
    shapes = ((2, 5), (5, 1000), (3, 1))
    for number, shape in enumerate(shapes):
        one.table(*shape)[:] = number
    for number, shape in enumerate(shapes):
        assert set(other.table(*shape).ravel()) == {number}
    assert one.table(5, 1000) is one.table(5, 1000), "a graph that is built again takes no more"


@pytest.mark.parametrize("count", [1, 7, 3 * PIECE // 2])
def test_everyone_gets_the_vectors_of_all_in_their_order(count: int) -> None:
    one, other, _ = two()
    vectors = [np.arange(count, dtype=np.int64), np.full(count, 5, np.int64)]
    found = {}
    thread = threading.Thread(target=lambda: found.update(other=other.gather(vectors[1])))
    thread.start()
    assert np.array_equal(one.gather(vectors[0]), vectors)
    thread.join()
    assert np.array_equal(found["other"], vectors)


def test_the_end_of_a_worker_is_an_error_at_once() -> None:
    one, _, end = two()
    end.close()
    with pytest.raises(WorkerGone):
        one.meet()


def test_workers_in_different_exchanges_are_noticed() -> None:
    one, _, end = two()
    end.sendall(bytes([2]))
    with pytest.raises(RuntimeError, match="worker 1 is in another exchange"):
        one.meet()


def test_a_worker_that_is_gone_is_not_the_fault_of_the_one_that_reports_it() -> None:
    one, _, end = two()
    end.close()

    def meet(value: np.ndarray) -> np.ndarray:
        one.meet()
        return value

    with pytest.raises(tf.errors.OpError) as found:
        tf.function(lambda: tf.numpy_function(meet, [tf.zeros([1])], tf.float32))()
    assert _lost_another_worker(found.value)
    assert _lost_another_worker(WorkerGone("worker 1 is gone"))
    assert not _lost_another_worker(tf.errors.UnknownError(None, None, "something else"))


def test_only_a_worker_that_was_given_neighbors_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NEIGHBORS, raising=False)
    assert find_neighbors(0) is None
    own, other = socket.socketpair()
    passed = os.memfd_create("test"), own.detach()
    monkeypatch.setenv(NEIGHBORS, ",".join(map(str, passed)))
    found = find_neighbors(1)
    assert found
    assert NEIGHBORS not in os.environ, "a child of this process has none"
    assert not os.get_inheritable(passed[1])
    other.sendall(bytes([1]))
    found.meet()
