"""Exchanges of vectors between real workers, for the suite `scale`.

    python -m benchmarks.contender_scale < cases

A line of the input is a case in JSON (`Case`). The workers of a case are forked from this process,
so TensorFlow is imported once for all. A line of the output has the results of all workers of a
case: for each algorithm, a list of turns.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks.forked import run_forked
from paceline.engines.hosts import meet
from paceline.engines.pairs import Collectives, ExactSum
from paceline.engines.peers import Peers, find_neighbors
from paceline.job import Cluster
from paceline.maths.replica import add
from paceline.maths.sums import divided_tree, tree_sum

_CLONE_NEWNET = 0x40000000
_TIMEOUT_S = 150


@dataclass(frozen=True)
class Case:
    """Workers at these addresses, each in its network namespace; an empty name is this one's."""

    hosts: list[str]
    addresses: list[str]
    replicas: int
    size: int
    """Floats of a vector."""
    algorithms: list[str]
    exchanges: int
    """Exchanges of a turn."""
    turns: int


def collectives(case: Case, index: int, vector: tf.Tensor) -> tf.Tensor:
    """Return the sum as Paceline computes it between GPUs, by TensorFlow's collectives."""
    members = len(case.addresses)
    sums = [vector] * len(divided_tree(case.replicas, members)[index])
    return ExactSum(case.replicas, members, index, Collectives(index, 1).swap, add).total(sums)


def exact(case: Case, index: int, vector: tf.Tensor) -> tf.Tensor:
    """Return the sum as Paceline computes it over TCP: one vector for each subtree of a share."""
    global hosts
    hosts = hosts or meet(Cluster(tuple(case.addresses), index))
    sums = [vector] * len(divided_tree(case.replicas, len(case.addresses))[index])
    return hosts.total(case.replicas, index, sums)


def sockets(case: Case, index: int, vector: tf.Tensor) -> tf.Tensor:
    """Return the same sum through the sockets of workers of one machine."""
    global neighbors
    neighbors = neighbors or find_neighbors(index)
    members = len(case.addresses)
    sums = [vector] * len(divided_tree(case.replicas, members)[index])
    return neighbors.total(case.replicas, index, sums)


neighbors: Peers | None = None
hosts: Peers | None = None


def ring(case: Case, index: int, vector: tf.Tensor) -> tf.Tensor:
    """Return the sum by TensorFlow's own all-reduce, in any order."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, vector)


def gather(case: Case, index: int, vector: tf.Tensor) -> tf.Tensor:
    """Return the sum as before: every worker gets the vectors of all, and adds them up."""
    rows = tf.distribute.get_replica_context().all_gather(vector[None], axis=0)
    return tree_sum(tf.unstack(rows, num=len(case.addresses)), add)


ALGORITHMS: dict[str, Callable[[Case, int, tf.Tensor], tf.Tensor]] = {
    "exact": exact,
    "collectives": collectives,
    "sockets": sockets,
    "ring": ring,
    "gather": gather,
}


def enter_host(name: str) -> None:
    """Move this process into a network namespace."""
    with open(f"/var/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


def sent_bytes() -> int:
    """Return what left this process's network namespace, with the headers of all packets."""
    with open("/proc/self/net/dev") as file:
        rows = [line.replace(":", " ").split() for line in file.readlines()[2:]]
    return sum(int(row[9]) for row in rows if row[0] != "lo")


def connect(case: Case, index: int) -> tf.distribute.Strategy:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if not {"ring", "gather", "collectives"} & {*case.algorithms}:
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": case.addresses}),
        task_type="worker",
        task_id=index,
        rpc_layer="grpc",
    )
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


def build_turn(
    strategy: tf.distribute.Strategy, case: Case, index: int, algorithm: str
) -> Callable[[int], None]:
    """Return a function that exchanges a number of times, as in a block of training."""

    def on_device(vector: tf.Tensor) -> tf.Tensor:
        own = tf.identity(vector)  # on the device of the worker
        return ALGORITHMS[algorithm](case, index, own) / case.replicas

    @tf.function(autograph=False)
    def turn(count: tf.Tensor) -> tf.Tensor:
        def body(k: tf.Tensor, vector: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            mean = strategy.run(on_device, args=(vector,))
            mean = strategy.experimental_local_results(mean)[0]
            return k + 1, tf.ensure_shape(mean, [case.size])

        first = [tf.constant(0), tf.ones([case.size])]
        return tf.while_loop(lambda k, _: k < count, body, first)[1][0]

    return lambda count: turn(tf.constant(count)).numpy()


def run_worker(case: Case, index: int) -> dict[str, list[dict[str, float]]]:
    if case.hosts[index]:
        enter_host(case.hosts[index])
    strategy = connect(case, index)
    turns = {name: build_turn(strategy, case, index, name) for name in case.algorithms}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
    for number in range(case.turns + 1):  # the first turn compiles
        for name, turn in turns.items():
            turn(1)  # all workers begin together
            before, sent = (time.perf_counter(), time.process_time()), sent_bytes()
            turn(case.exchanges)
            after = time.perf_counter(), time.process_time()
            wall_s, cpu_s = ((b - a) / case.exchanges for a, b in zip(before, after, strict=True))
            bytes_each = (sent_bytes() - sent) / case.exchanges
            if number:
                measured[name].append({"wall_s": wall_s, "cpu_s": cpu_s, "sent": bytes_each})
    return measured


def run(case: Case) -> list[Any]:
    """Return the results of all workers; None for one that failed."""
    workers = range(len(case.addresses))
    return run_forked([partial(run_worker, case, index) for index in workers], _TIMEOUT_S)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(Case(**json.loads(line)))), flush=True)
