"""Workers of several machines meet over TCP; strangers and late ones do not disturb them."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from helpers import free_addresses
from paceline.engines.hosts import meet
from paceline.engines.peers import Peers, WorkerGone
from paceline.engines.probe import find_silent
from paceline.errors import AddressTaken, UserError
from paceline.job import Cluster
from paceline.messages import TOKEN

Meet = Callable[[Sequence[str]], list[Peers]]


@pytest.fixture
def met() -> Iterator[Meet]:
    """Lets all workers of a cluster meet, the last one first."""
    found: list[Peers] = []

    def meet_all(addresses: Sequence[str]) -> list[Peers]:
        clusters = [Cluster(tuple(addresses), index) for index in range(len(addresses))]
        with ThreadPoolExecutor() as pool:
            hosts = list(pool.map(meet, reversed(clusters)))[::-1]
        found.extend(hosts)
        return hosts

    yield meet_all
    for each in found:
        each.close()


def at_once(*calls) -> list:
    with ThreadPoolExecutor() as pool:
        return [each.result(20) for each in [pool.submit(call) for call in calls]]


def test_workers_gather_vectors_in_their_order(met: Meet) -> None:
    hosts = met(free_addresses(3))
    vectors = [np.arange(70_001, dtype=np.int64) * (k + 1) for k in range(3)]
    for rows in at_once(*(lambda k=k: hosts[k].gather(vectors[k]) for k in range(3))):
        assert np.array_equal(rows, vectors)


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


@pytest.mark.parametrize("index", [0, 1])
def test_who_waits_for_others_leaves_when_the_attempt_has_ended(index: int) -> None:
    ended = threading.Event()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(meet, Cluster(tuple(free_addresses(2)), index), ended.is_set)
        ended.set()
        with pytest.raises(WorkerGone):
            waiting.result(20)


def _meet_when_free(cluster: Cluster) -> Peers:
    """Meet the others as soon as the worker of the last attempt has left the address."""
    while True:
        with suppress(AddressTaken):
            return meet(cluster)
        time.sleep(0.05)
