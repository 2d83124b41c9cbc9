"""Workers of several machines meet over TCP, exchange vectors, and notice who is gone.

tests/claims/test_any_workers.py compares its sums with those of one process.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from helpers import free_addresses
from paceline.engines.hosts import Hosts, meet
from paceline.engines.probe import find_silent
from paceline.engines.shared_memory import WorkerGone
from paceline.errors import AddressTaken, UserError
from paceline.job import Cluster
from paceline.messages import TOKEN

Meet = Callable[[Sequence[str]], list[Hosts]]


@pytest.fixture
def met() -> Iterator[Meet]:
    """Lets all workers of a cluster meet, the last one first."""
    found: list[Hosts] = []

    def meet_all(addresses: Sequence[str]) -> list[Hosts]:
        clusters = [Cluster(tuple(addresses), index) for index in range(len(addresses))]
        with ThreadPoolExecutor() as pool:
            hosts = list(pool.map(meet, reversed(clusters)))[::-1]
        found.extend(hosts)
        return hosts

    yield meet_all
    for each in found:
        each.close()


@pytest.fixture
def two(met: Meet) -> list[Hosts]:
    return met(free_addresses(2))


def at_once(*calls) -> list:
    with ThreadPoolExecutor() as pool:
        return [each.result(20) for each in [pool.submit(call) for call in calls]]


def test_workers_gather_vectors_in_their_order(met: Meet) -> None:
    hosts = met(free_addresses(3))
    vectors = [np.arange(70_001, dtype=np.int64) * (k + 1) for k in range(3)]
    for rows in at_once(*(lambda k=k: hosts[k].gather(vectors[k]) for k in range(3))):
        assert np.array_equal(rows, vectors)


def test_large_arrays_go_both_ways_at_the_same_time(two: list[Hosts]) -> None:
    large = np.random.default_rng(0).normal(size=5_000_000).astype(np.float32)
    for rows in at_once(lambda: two[0].gather(large), lambda: two[1].gather(-large)):
        assert np.array_equal(rows, [large, -large])


def test_a_worker_that_has_ended_is_noticed_at_once(two: list[Hosts]) -> None:
    two[1]._sockets[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(WorkerGone):
        two[0].gather(np.zeros(3))


def test_workers_in_different_exchanges_are_noticed(two: list[Hosts]) -> None:
    two[0]._exchanges = 7
    with pytest.raises(RuntimeError, match="worker 1 is in another exchange"):
        at_once(lambda: two[0].gather(np.zeros(3)), lambda: two[1].gather(np.zeros(3)))


def test_a_stranger_without_the_token_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = tuple(free_addresses(2))
    with ThreadPoolExecutor() as pool:
        monkeypatch.setenv(TOKEN, "one")
        first = pool.submit(meet, Cluster(addresses, 0))
        while find_silent(addresses[:1]):  # it answers a probe, which knows no token
            assert not first.done()
        monkeypatch.setenv(TOKEN, "two")
        with pytest.raises(UserError, match=f"different tokens; give all tasks the same .*{TOKEN}"):
            meet(Cluster(addresses, 1))
        assert not first.done()
        monkeypatch.setenv(TOKEN, "one")
        second = meet(Cluster(addresses, 1))
        first.result(20).close()
        second.close()


def test_what_a_stranger_sends_disturbs_nobody() -> None:
    addresses = tuple(free_addresses(2))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(meet, Cluster(addresses, 0))
        host, port = addresses[0].split(":")
        while find_silent(addresses[:1]):
            assert not first.done()
        for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(100)):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(nonsense)
        second = meet(Cluster(addresses, 1))
        both = first.result(20), second
        ones = at_once(lambda: both[0].gather(np.ones(1)), lambda: both[1].gather(np.zeros(1)))
        assert np.array_equal(ones[1], [[1.0], [0.0]])
        for each in both:
            each.close()


def test_a_worker_of_a_later_attempt_waits_until_the_others_have_restarted() -> None:
    addresses = tuple(free_addresses(2))
    clusters = Cluster(addresses, 0), Cluster(addresses, 1)
    old = at_once(lambda: meet(clusters[0]), lambda: meet(clusters[1]))
    old[1].close()  # its process has ended; the chief's has not noticed
    with ThreadPoolExecutor() as pool:
        again = pool.submit(_meet_when_free, clusters[1])
        with pytest.raises(WorkerGone):
            old[0].gather(np.zeros(1))
        assert not find_silent(clusters[0].addresses[:1])
        assert not again.done(), "the chief has met the worker of its own attempt"
        old[0].close()
        chief = _meet_when_free(clusters[0])
        again.result(20).close()
        chief.close()


def _meet_when_free(cluster: Cluster) -> Hosts:
    """Meet the others as soon as the worker of the last attempt has left the address."""
    while True:
        with suppress(AddressTaken):
            return meet(cluster)
        time.sleep(0.05)
