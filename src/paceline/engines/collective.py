"""The collective engine: replicas meet in `tf.distribute`.

It runs on one device, on mirrored devices, or in several processes. Each device holds the whole
state and computes its share of the replicas, a whole subtree of the sum. The sums of the subtrees
meet in an all-reduce or a gather, and every device applies the same update to its own copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from paceline.config.job import Job
from paceline.core.evaluation import evaluate_splits
from paceline.core.metrics import TAIL, Metrics, block_metrics
from paceline.core.replica import Core
from paceline.core.rounds import build_rounds, rates_of
from paceline.core.state import State, evaluated_vector
from paceline.core.tree import tree_sum
from paceline.engines.base import BuildCore, WantsStop
from paceline.worker import devices
from paceline.worker.fingerprint import compare_workers


def open_engine(
    job: Job, build_core: BuildCore, wants_stop: WantsStop
) -> tuple[Core, CollectiveEngine]:
    """Connect to the other workers, build the core, and compare it with theirs."""
    strategy = devices.build_strategy(job)
    core = build_core()
    engine = CollectiveEngine(core, strategy, devices.side_by_side(job), wants_stop)
    compare_workers(job, core, engine)
    return core, engine


class CollectiveEngine:
    """A state on the devices of one strategy; each runs `side_by_side` replicas at a time."""

    def __init__(
        self,
        core: Core,
        strategy: tf.distribute.Strategy,
        side_by_side: int,
        wants_stop: WantsStop = lambda: False,
    ) -> None:
        self._core = core
        self._strategy = strategy
        self._side_by_side = side_by_side
        self._wants_stop = wants_stop
        self._alone = not strategy.extended._in_multi_worker_mode()
        self._replicas_per_device = core.experiment.replicas // strategy.num_replicas_in_sync
        self._rounds = build_rounds(core, side_by_side)
        self._step = 0
        self._seconds = 0.0  # for each step of the last block
        sizes = core.layout.sizes()
        with strategy.scope():
            self._vectors = {name: _local_variable(size) for name, size in sizes.items()}
        self._block = tf.function(self._train_block, autograph=False, reduce_retracing=True)
        self._evaluate = {
            split: tf.function(self._build_evaluate(split), autograph=False)
            for split in core.splits
        }

    def load(self, state: State) -> State:
        state = state if self._alone else self._take_from_chief(state)
        self._step = state.step
        for name, variable in self._vectors.items():
            for copy in self._strategy.experimental_local_results(variable):
                copy.assign(state.vectors[name])
        return state

    def _take_from_chief(self, own: State) -> State:
        step = int(self.gather(np.array([own.step], np.int64))[0, 0])
        joined = self.gather(np.concatenate(list(own.vectors.values())))[0]
        sizes = self._core.layout.sizes()
        pieces = np.split(joined, np.cumsum(list(sizes.values()))[:-1])
        return State(step, dict(zip(sizes, pieces, strict=True)))

    def state(self) -> State:
        vectors = {name: self._local(copies).numpy() for name, copies in self._vectors.items()}
        return State(self._step, vectors)

    def advance(self, start: int, stop: int) -> Metrics:
        began = time.monotonic()
        table = rates_of(self._core, start, stop)
        bounds = tf.constant(start, tf.int64), tf.constant(stop, tf.int64)
        signals = tf.constant([float(self._wants_stop()), self._seconds])
        tails = self._block(*bounds, tf.constant(table), signals).numpy()
        self._step = start + len(tails)
        self._seconds = (time.monotonic() - began) / len(tails)
        metrics = block_metrics(self._core, self._step, tails, table, self._seconds)
        if not self._alone:  # all workers must choose the same length of the next block
            metrics["seconds_per_step"] = float(tails[-1, TAIL.index("seconds")])
        return metrics

    def evaluate(self, final: bool) -> Metrics:
        return evaluate_splits(self._core, final, self._compute_rows)

    def _compute_rows(self, split: str, count: int) -> np.ndarray:
        rows = []
        for first in range(0, count, self._strategy.num_replicas_in_sync * self._side_by_side):
            self._wants_stop()  # an evaluation is not cut short; this shows that it is active
            rows.append(self._evaluate[split](tf.constant(first, tf.int64)).numpy())
        return np.concatenate(rows)

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """Return one vector of each worker, of equal size and type, as rows in worker order."""
        if self._alone:
            return vector[None]
        rows = self._local(self._gather(tf.constant(vector))).numpy()
        return rows[:: self._strategy.num_replicas_in_sync // self._strategy.extended._num_workers]

    @tf.function(autograph=False, reduce_retracing=True)
    def _gather(self, vector: tf.Tensor) -> tf.Tensor:
        def on_device(own: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_gather(own[None], axis=0)

        return self._strategy.run(on_device, args=(vector,))

    def close(self) -> None:
        # no worker leaves before the chief, whose process the others need
        self.gather(np.zeros(1, np.float32))

    def _local(self, value: tf.Tensor) -> tf.Tensor:
        """Return this worker's first copy of a value that every device has."""
        return self._strategy.experimental_local_results(value)[0]

    def _train_block(
        self, start: tf.Tensor, stop: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> tf.Tensor:
        """Return the tails of the steps [start, stop), or of fewer if a worker wants to stop."""
        length = self._core.plan.round_steps

        def continues(first: tf.Tensor, stopped: tf.Tensor, _: tf.TensorArray) -> tf.Tensor:
            return (first < stop) & ~stopped

        def body(first: tf.Tensor, _: tf.Tensor, rounds: tf.TensorArray) -> tuple[tf.Tensor, ...]:
            last = tf.minimum(first + length, stop)
            rates = table[first - start : last - start]
            tails = self._strategy.run(self._train_round, args=(first, last, rates, signals))
            tails = self._local(tails)
            # every worker has the same tails, so all stop after the same round
            stopped = tails[0, TAIL.index("stop")] > 0
            index = tf.cast((first - start) // length, tf.int32)
            return last, stopped, rounds.write(index, tails)

        count = tf.cast((stop - start + length - 1) // length, tf.int32)
        empty = tf.TensorArray(tf.float32, count, element_shape=[length, len(TAIL)])
        # two iterations at a time: the next batch is prepared while this one is trained on
        last, _, rounds = tf.while_loop(
            continues, body, [start, tf.constant(False), empty], parallel_iterations=2
        )
        return tf.reshape(rounds.stack(), [-1, len(TAIL)])[: last - start]

    def _train_round(
        self, first: tf.Tensor, last: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> tf.Tensor:
        """Train one round in a replica context, and return its tails."""
        vectors = {name: tf.identity(variable) for name, variable in self._vectors.items()}
        count = self._replicas_per_device
        first_replica = tf.distribute.get_replica_context().replica_id_in_sync_group * count
        results = self._rounds.compute(vectors, first, last, table, signals, first_replica, count)
        new, tails = self._rounds.finish(vectors, self._mean(results), table)
        for name, variable in self._vectors.items():
            variable.assign(new[name])
        return tails

    def _mean(self, results: list[tf.Tensor]) -> tf.Tensor:
        """Return the mean over all replicas, summed by the tree.

        The order of two subtrees does not matter; more of them are gathered and added here.
        """
        context = tf.distribute.get_replica_context()
        num_devices = self._strategy.num_replicas_in_sync
        total = tree_sum(results)
        if num_devices == 2 or (num_devices > 2 and not self._core.experiment.exact):
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
        elif num_devices > 2:
            total = tree_sum(tf.unstack(context.all_gather(total[None], axis=0), num=num_devices))
        return total / self._core.experiment.replicas

    def _build_evaluate(self, split: str) -> Callable[[tf.Tensor], tf.Tensor]:
        """Return the function first -> rows of one turn: `side_by_side` batches on each device."""
        count = self._side_by_side
        params = self._vectors[evaluated_vector(self._vectors)]

        def on_device(first: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            own_first = first + tf.cast(context.replica_id_in_sync_group, tf.int64) * count
            weights, stats = tf.identity(params), tf.identity(self._vectors["stats"])
            rows = self._core.evaluate_batches(split, weights, stats, own_first, count)
            return rows if context.num_replicas_in_sync == 1 else context.all_gather(rows, axis=0)

        return lambda first: self._local(self._strategy.run(on_device, args=(first,)))


def _local_variable(size: int) -> tf.Variable:
    """Build a variable of which each device updates its own copy; no write is communicated."""
    return tf.Variable(
        tf.zeros([size]),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
