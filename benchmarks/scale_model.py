"""A small model of what an exchange costs, for more workers and other links than measured here.

An exchange costs a worker CPU time for each message and each byte. On a network it also takes a
latency for each round of messages, and the time of its bytes on the link. The model adds all of
these, as if nothing overlapped. Pure functions, no measurement.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.maths.sums import divided_tree

FLOAT_BYTES = 4
LATENCY_S = 50e-6  # of a round on a network of one data centre


@dataclass(frozen=True)
class Traffic:
    """What the busiest worker sends in one exchange."""

    vectors: float
    """In vectors."""
    messages: int
    rounds: int
    """Messages that follow one after another."""


def exact_traffic(workers: int, replicas: int) -> Traffic:
    """Return the traffic of `paceline.engines.pairs`."""
    if workers <= 2:
        return Traffic(workers - 1.0, workers - 1, workers - 1)
    counts = [len(spans) for spans in divided_tree(replicas, workers)]
    if max(counts) == 1 and workers & (workers - 1) == 0:
        rounds = 2 * int(math.log2(workers))
        return Traffic(2 * (workers - 1) / workers, rounds, rounds)
    sent = max(
        sum(max(own, other) for k, other in enumerate(counts) if k != index)
        for index, own in enumerate(counts)
    )
    return Traffic((sent + workers - 1) / workers, 2 * (workers - 1), 2)


def ring_traffic(workers: int) -> Traffic:
    """Return the traffic of a plain ring all-reduce."""
    rounds = 2 * (workers - 1)
    return Traffic(rounds / workers, rounds, rounds)


def servers_traffic(workers: int, servers: int) -> Traffic:
    """Return the traffic of the busier side, a worker or a parameter server.

    A worker reads the parameters and sends its gradient; a server does so for all workers.
    """
    per_server = workers / servers
    return Traffic(2 * max(1.0, per_server), round(2 * max(servers, workers)), 2)


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a worker, for each message and each byte."""

    message_s: float
    byte_s: float

    def cpu_s(self, traffic: Traffic, size: int) -> float:
        return self.message_s * traffic.messages + self.byte_s * self.bytes_of(traffic, size)

    def seconds(
        self, traffic: Traffic, size: int, mbit_per_s: float, latency_s: float = LATENCY_S
    ) -> float:
        """Return the time of an exchange between workers that each have a core and such a link."""
        on_link_s = self.bytes_of(traffic, size) * 8 / (mbit_per_s * 1e6)
        return self.cpu_s(traffic, size) + on_link_s + traffic.rounds * latency_s

    @staticmethod
    def bytes_of(traffic: Traffic, size: int) -> float:
        return traffic.vectors * FLOAT_BYTES * size


def fit(measured: Sequence[tuple[Traffic, int, float]]) -> Cost:
    """Return the costs that explain (traffic, size, CPU seconds) best, by relative error."""
    rows = [[traffic.messages, Cost.bytes_of(traffic, size)] for traffic, size, _ in measured]
    seconds = np.array([cpu_s for *_, cpu_s in measured])
    weighted = np.array(rows) / seconds[:, None]
    message_s, byte_s = np.linalg.lstsq(weighted, np.ones(len(seconds)), rcond=None)[0]
    return Cost(max(0.0, float(message_s)), max(0.0, float(byte_s)))
