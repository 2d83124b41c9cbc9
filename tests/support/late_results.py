"""Two parameter servers and a worker in one process, with late results of lost workers.

    python late_results.py gradients|async

prints the digests of a training without and one with late results in the slots, and how many
updates were refused. It is not a test itself.
"""

import json
import os
import sys
from dataclasses import replace

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

from helpers import free_addresses
from paceline.engines_more.parameter_server.asynchronous import AsynchronousEngine
from paceline.engines_more.parameter_server.synchronous import SynchronousEngine
from paceline.experiment.experiment import Sync
from paceline.job import Cluster
from tiny import EXPERIMENT, build_small_model, build_tiny_core

STEPS = 6


def start_cluster(workers: int = 1) -> tuple[Cluster, list[tf.distribute.Server]]:
    """Start workers and two parameter servers in this process, which is the chief."""
    addresses = tuple(free_addresses(1 + workers + 2))
    cluster = Cluster(addresses[: 1 + workers], ps=addresses[1 + workers :])
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=16,
        device_count={"CPU": 2},  # a worker uses them as it would use two GPUs
    )
    tasks = [*(("worker", index) for index in range(workers)), ("ps", 0), ("ps", 1)]
    spec = tf.train.ClusterSpec(cluster.tasks)
    return cluster, [
        tf.distribute.Server(spec, job_name=role, task_index=i, protocol="grpc", config=config)
        for role, i in tasks
    ]


def main(method: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    cluster, _servers = start_cluster()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.tasks), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    bound = 0 if method == "async" else -1
    core = build_tiny_core(
        replace(EXPERIMENT, sync=Sync(method, max_staleness=bound)), build_small_model()
    )
    kind = AsynchronousEngine if method == "async" else SynchronousEngine
    engine = kind(core, cluster, strategy, 1, lambda: False)
    apply, sizes, answers = engine._apply, core.layout.sizes(), list[bool]()

    def apply_after_a_late_result(request: tf.Tensor, rates: tf.Tensor) -> tf.Tensor:
        """Every third time, write an older result into a slot of one server before the update."""
        if len(answers) % 3 == 1:
            stamp = tf.reshape(request, [-1])[0] - 1
            server = engine._servers[1]
            more = server.slots.shape[1] - server.sizes["params"] - server.sizes["stats"] - 2
            noise = [tf.random.normal([size]) for size in (sizes["params"], sizes["stats"], more)]
            server.put(tf.constant(0, tf.int64), stamp, *noise)
        answer = apply(request, rates)
        answers.append(bool(tf.reshape(answer, [-1])[0]))
        return answer

    digests, devices = [], set[str]()
    if method == "gradients":
        divided = kind(core, cluster, strategy, 2, lambda: False, ("/cpu:0", "/cpu:1"))
        divided.load(core.initial_state())
        divided.advance(0, STEPS)
        digests.append(divided.state().sha256())
        request = tf.TensorSpec([3], tf.int64)
        for compute in divided._compute.values():
            operations = compute.get_concrete_function(request).graph.get_operations()
            devices |= {each.device[-5:] for each in operations if "CPU" in each.device}
    for late in (False, True):
        engine._apply = apply_after_a_late_result if late else apply
        engine.load(core.initial_state())
        engine.advance(0, STEPS)
        digests.append(engine.state().sha256())
    counts = {"refused": answers.count(False), "applied": answers.count(True)}
    print(json.dumps({"digests": digests, "devices": sorted(devices)} | counts), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
