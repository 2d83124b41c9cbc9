"""Real workers of TensorFlow's collectives, forked from one process that has imported TensorFlow.

So many numbers of workers can be tested in a few seconds. Not a test itself:

    python tests/support/forked_workers.py FUNCTION CASES

CASES is JSON. FUNCTION is called in every worker with a strategy and the values of a case; one of
them is `workers`. Prints a line of JSON for each case: the results of all workers.
"""

import hashlib
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(str(Path(__file__).parents[2]))  # for `benchmarks`

# all that workers need, before they are forked
import numpy as np
import tensorflow as tf
from benchmarks.forked import run_forked

from helpers import free_addresses
from paceline.engines.collective import CollectiveEngine
from paceline.engines.hosts import meet
from paceline.engines.pairs import Collectives, ExactSum
from paceline.engines.peers import Peers
from paceline.experiment.experiment import Sync
from paceline.job import Cluster
from paceline.maths.replica import add
from paceline.maths.sums import divided_tree, subtree_sums
from tiny import EXPERIMENT, build_small_model, build_source, build_tiny_core

TIMEOUT_S = 100


def leaf(replica: int, size: int) -> np.ndarray:
    """The vector of a replica, with numbers of very different sizes."""
    random = np.random.default_rng(replica)
    values = random.normal(size=size) * 10.0 ** random.integers(-3, 4, size)
    return values.astype(np.float32)


def add_vectors(
    strategy: tf.distribute.Strategy,
    workers: int,
    replicas: int,
    size: int,
    rounds: int = 2,
    exchange: Peers | None = None,
) -> str:
    """Return the digest of the exact sum over the replicas, of vectors that change each round."""

    def on_device(number: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        own = int(tf.get_static_value(context.replica_id_in_sync_group))
        own = exchange.index if exchange else own
        spans = divided_tree(replicas, workers)[own]
        numbers = range(spans[0][0], spans[-1][1])
        leaves = [tf.constant(leaf(k, size)) * number for k in numbers]
        sums = subtree_sums(leaves, spans, add)
        if exchange:
            return exchange.total(replicas, own, sums)
        swap = Collectives(own, per_worker=1).swap
        return ExactSum(replicas, workers, own, swap, add).total(sums)

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        def body(k: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            total = strategy.run(on_device, args=(tf.cast(k + 1, tf.float32),))
            return k + 1, tf.ensure_shape(strategy.experimental_local_results(total)[0], [size])

        return tf.while_loop(lambda k, _: k < rounds, body, [0, tf.zeros([size])])[1]

    return hashlib.sha256(run().numpy().tobytes()).hexdigest()


def train(
    strategy: tf.distribute.Strategy,
    workers: int,
    replicas: int,
    method: str = "gradients",
    exchange: Peers | None = None,
) -> list[Any]:
    """Return the digest after seven steps of the engine, and what an evaluation counts."""
    experiment = replace(
        EXPERIMENT, replicas=replicas, global_batch_size=2 * replicas, sync=Sync(method, 3), steps=7
    )
    core = build_tiny_core(experiment, build_small_model(), build_source(test=503))
    names = tuple(f"worker-{k}" for k in range(workers))
    engine = CollectiveEngine(core, strategy, 2, exchange=exchange, addresses=names)
    engine.check({})
    engine.load(core.initial_state())
    losses = engine.advance(0, 7).losses.tolist()
    test = engine.evaluate(final=True).splits["test"]
    result = [engine.state().sha256(), losses, test.count, test.loss]
    engine.close()
    return result


def run_worker(function: Callable[..., Any], case: dict[str, Any], index: int) -> Any:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    way, addresses = case.pop("way"), case.pop("addresses")
    if way == "hosts":
        case["exchange"] = meet(Cluster(tuple(addresses), index))
    if case["workers"] == 1 or "exchange" in case:
        return function(tf.distribute.OneDeviceStrategy("/cpu:0"), **case)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}),
        task_type="worker",
        task_id=index,
        rpc_layer="grpc",
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    return function(strategy, **case)


def connect(workers: int) -> list[Peers]:
    """The connections of each worker of one machine."""
    sockets = [{} for _ in range(workers)]
    for low, high in combinations(range(workers), 2):
        sockets[low][high], sockets[high][low] = socket.socketpair()
    return [Peers(index, each) for index, each in enumerate(sockets)]


def run_case(function: Callable[..., Any], case: dict[str, Any]) -> list[Any]:
    neighbors = connect(case["workers"]) if case["way"] == "neighbors" else []
    case |= {"addresses": free_addresses(case["workers"])}
    works = []
    for index in range(case["workers"]):
        own = {"exchange": neighbors[index]} if neighbors else {}
        works.append(partial(run_worker, function, case | own, index))
    return ["failed" if each is None else each for each in run_forked(works, TIMEOUT_S)]


if __name__ == "__main__":
    for values in json.loads(sys.argv[2]):
        print(json.dumps(run_case(globals()[sys.argv[1]], values)), flush=True)
