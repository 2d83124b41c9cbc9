"""Any number of workers: the exchange of the sums over their replicas."""

import json
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import SUPPORT
from paceline.engines import pairs as exchange
from paceline.engines.pairs import ExactSum, cut_into_chunks
from paceline.maths.sums import divided_tree
from tree import assert_same_bits, leaves, tree_by_numpy

FORKED_WORKERS = SUPPORT / "forked_workers.py"
UP_TO_16 = [(replicas, workers) for replicas in range(1, 17) for workers in range(1, replicas + 1)]


# --- the exchange, between threads of this process


class Switchboard:
    """Passes vectors between members that are threads, and counts what each sends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._slots: dict[Any, dict[int, np.ndarray]] = {}
        self.sent = Counter[int]()

    def swap(self, index: int, other: int, own: np.ndarray, turn: int) -> np.ndarray:
        pair = min(index, other), max(index, other)
        with self._changed:
            slot = self._slots.setdefault((*pair, turn), {})
            assert index not in slot, "each exchange of a pair has its own turn"
            slot[index] = np.asarray(own)
            self.sent[index] += slot[index].size
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(slot) == 2, timeout=20)
        return np.concatenate([slot[pair[0]], slot[pair[1]]])


def exchanged(replicas: int, workers: int, size: int) -> tuple[list[np.ndarray], Counter[int]]:
    """Return the sum that each member gets, and the floats that each sends."""
    board, values = Switchboard(), leaves(replicas, size)
    totals: list[Any] = [None] * workers

    def run(index: int) -> None:
        spans = divided_tree(replicas, workers)[index]
        sums = [tree_by_numpy(values[start:stop]) for start, stop in spans]
        one = ExactSum(replicas, workers, index, partial(board.swap, index), np.add)
        totals[index] = np.asarray(one.total(sums))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return totals, board.sent


def check_exchange(replicas: int, workers: int, size: int) -> float:
    """Check the sums of all members; return the most that one sends, in vectors."""
    totals, sent = exchanged(replicas, workers, size)
    for total in totals:
        assert_same_bits(total, tree_by_numpy(leaves(replicas, size)))
    return max(sent.values(), default=0) / size


@pytest.mark.parametrize("size", [1, 100])
def test_every_member_gets_numpys_tree_for_every_number_of_workers(size: int) -> None:
    for replicas, workers in UP_TO_16:
        # 10 on 8: one subtree each, but not one level of the tree
        if replicas <= 9 or (replicas, workers) == (10, 8):
            check_exchange(replicas, workers, size)


def test_a_worker_sends_about_as_much_as_in_a_ring() -> None:
    for replicas, workers in UP_TO_16:
        if workers == 1:
            continue
        sent = check_exchange(replicas, workers, 16 * workers)
        ring = 2 * (workers - 1) / workers
        if workers & (workers - 1) == 0:
            assert sent == pytest.approx(ring), (replicas, workers)
        assert sent <= 2.8, (replicas, workers)


def test_large_vectors_are_exchanged_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CHUNK", 64)
    for workers in (2, 3):
        check_exchange(3, workers, 500)


@given(st.integers(1, 40_000_000))
def test_chunks_cover_a_vector_and_only_a_large_one_has_several(size: int) -> None:
    chunks = cut_into_chunks(size)
    assert [start for start, _ in chunks] == [
        sum(length for _, length in chunks[:k]) for k in range(len(chunks))
    ]
    assert sum(length for _, length in chunks) == size
    assert all(start % exchange.ALIGNED == 0 and length > 0 for start, length in chunks)
    assert len(chunks) == 1 or size / len(chunks) >= 0.9 * exchange.CHUNK


# --- the exchange and the engine, between real workers


def forked(function: str, *cases: dict[str, Any]) -> list[list[Any]]:
    """Return the results of all workers of each case."""
    ended = subprocess.run(
        [sys.executable, str(FORKED_WORKERS), function, json.dumps(cases)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def assert_all_equal_one_process(function: str, replicas: int, *workers: int, **more: Any) -> None:
    """Workers that exchange vectors by TensorFlow's collectives, over TCP, and on one machine."""
    ways = [(count, way) for count in workers for way in ("collectives", "hosts", "neighbors")]
    cases = [
        {"replicas": replicas, "workers": count, "way": way, **more}
        for count, way in [(1, "neighbors"), *ways]
    ]
    (alone,), *others = forked(function, *cases)
    assert alone != "failed"
    for (count, way), results in zip(ways, others, strict=True):
        assert results == [alone] * count, (replicas, count, way)


@pytest.mark.slow
def test_the_sum_between_processes_is_that_of_one_process() -> None:
    """With more than ten workers, because TensorFlow sorts their numbers as texts."""
    assert_all_equal_one_process("add_vectors", 11, 2, 3, 11, size=1000)


@pytest.mark.long
def test_the_sum_in_chunks_between_processes_is_that_of_one_process() -> None:
    assert_all_equal_one_process("add_vectors", 5, 2, 3, 4, size=3_200_001)


@pytest.mark.long
@pytest.mark.parametrize("replicas", [3, 8])
def test_every_number_of_workers_trains_with_the_bits_of_one_process(replicas: int) -> None:
    assert_all_equal_one_process("train", replicas, *range(2, replicas + 1))


@pytest.mark.long
def test_every_number_of_workers_averages_weights_with_the_bits_of_one_process() -> None:
    assert_all_equal_one_process("train", 6, 2, 5, method="weights")


@pytest.mark.long
def test_twelve_workers_evaluate_and_train_with_the_bits_of_one_process() -> None:
    assert_all_equal_one_process("train", 13, 12)
