"""What workers exchange over the network, or the devices of one worker: TensorFlow's collectives.

`pairs` has the sum over the replicas. Nothing here is used by workers that share memory.
"""

import signal
import threading
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from paceline.engines.pairs import Collectives, ExactSum
from paceline.errors import address_taken
from paceline.job import Job
from paceline.maths.replica import add
from paceline.maths.sums import divided_tree, subtree_sums


def build_multi_worker_strategy(job: Job) -> tf.distribute.Strategy:
    """Connect to the other workers, when all of them are there; return their strategy."""
    if job.place.kind.platform_restarts:
        from paceline.engines.probe import wait_for_tasks

        wait_for_tasks(job.cluster)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(job.cluster.addresses)}),
        task_type="worker",
        task_id=job.cluster.index,
        rpc_layer="grpc",
    )
    on_sigterm = signal.getsignal(signal.SIGTERM)
    _raise_heartbeat_timeout(job)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in str(error):
            raise
        raise address_taken(job.cluster.address) from error
    if threading.current_thread() is threading.main_thread():
        # TensorFlow's coordination service has set its own handler
        signal.signal(signal.SIGTERM, on_sigterm)
    return strategy


def _raise_heartbeat_timeout(job: Job) -> None:
    """Let TensorFlow's coordination service wait longer than our own watchdog.

    By default it gives a worker up after 10 s without a heartbeat, and a slow link full of vectors
    can delay one for longer. Paceline's watchdog decides who is lost, and names that worker.
    """
    from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=int(2000 * job.place.stall_timeout),
        coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=job.cluster.num_workers)],
    )


class Network:
    """The devices of a strategy, of one worker or of several."""

    index = 0

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._per_worker = len(strategy.extended.worker_devices)
        self.members = strategy.num_replicas_in_sync
        self.ordered = any("GPU" in device for device in strategy.extended.worker_devices)

    def close(self) -> None:
        """Leave everything to TensorFlow."""

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """Return the vectors of all workers, of equal size and type, as rows in worker order."""
        if self._per_worker == self.members:
            return vector[None]
        rows = self._gather(tf.constant(vector)).numpy()
        # TensorFlow's order is its own: worker 10 is before worker 2
        in_order = rows[np.argsort(rows[:, 0], kind="stable")]
        return np.asarray(in_order[:: self._per_worker, 1:])

    @tf.function(autograph=False, reduce_retracing=True)
    def _gather(self, vector: tf.Tensor) -> tf.Tensor:
        def on_device(own: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            index = tf.cast(context.replica_id_in_sync_group, own.dtype)
            return context.all_gather(tf.concat([index[None], own], 0)[None], axis=0)

        rows = self._strategy.run(on_device, args=(vector,))
        return self._strategy.experimental_local_results(rows)[0]

    def total(self, replicas: int, own: int, sums: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the sum over all replicas from those of device `own`, in a replica context."""
        calls = Collectives(own, self._per_worker, self.ordered)
        reduce = calls.reduce if self.ordered else None
        return ExactSum(replicas, self.members, own, calls.swap, add, reduce).total(sums)

    def check(self, replicas: int) -> None:
        """Raise an error if TensorFlow gathers in a different order, which is not documented."""
        leaves = (np.arange(101) * 7 + np.arange(replicas)[:, None] * 13) % 31.0

        def on_device() -> tf.Tensor:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = int(tf.get_static_value(index))
            spans = divided_tree(replicas, self.members)[own]
            values = tf.unstack(tf.constant(leaves[spans[0][0] : spans[-1][1]], tf.float32))
            return self.total(replicas, own, subtree_sums(values, spans, add))

        total = tf.function(lambda: self._strategy.run(on_device), autograph=False)()
        for found in self._strategy.experimental_local_results(total):
            if not np.array_equal(found, leaves.sum(0)):
                raise RuntimeError(
                    "the exchange between workers gives a wrong sum: this version of TensorFlow "
                    "orders devices in another way; use the version of constraints.txt"
                )
