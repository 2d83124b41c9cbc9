"""The collective engine: replicas meet in `tf.distribute`, on one device, on mirrored devices, or in several processes.

Each device holds the whole state and computes its share of the replicas, a whole subtree; the sums of the subtrees meet in an
all-reduce or a gather, and every device applies the same update to its own copy.
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
from paceline.worker import devices
from paceline.worker.build import build
from paceline.worker.fingerprint import compare_workers


def open_engine(job: Job, wants_stop: Callable[[], bool]) -> tuple[Core, CollectiveEngine]:
    """Meet the other workers, build the core, and see that everyone has the same."""
    strategy = devices.build_strategy(job)
    core = build(job)
    engine = CollectiveEngine(core, strategy, devices.side_by_side(job), wants_stop)
    compare_workers(job, core, engine)
    return core, engine


class CollectiveEngine:
    """Advances a state on the devices of one `tf.distribute` strategy, `side_by_side` replicas of a device at a time."""

    def __init__(
        self,
        core: Core,
        strategy: tf.distribute.Strategy,
        side_by_side: int,
        wants_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._core, self._strategy, self._side_by_side, self._wants_stop = (
            core,
            strategy,
            side_by_side,
            wants_stop,
        )
        self._replicas_per_device = core.experiment.replicas // strategy.num_replicas_in_sync
        self._rounds = build_rounds(core, side_by_side)
        self._step, self._seconds = 0, 0.0
        self._alone = not strategy.extended._in_multi_worker_mode()
        with strategy.scope():
            self._vectors = {
                name: _local_variable(core.layout.sizes()[name]) for name in core.layout.parts
            }
        self._block = tf.function(self._build_block(), autograph=False, reduce_retracing=True)
        self._evaluate = {
            split: tf.function(self._build_evaluate(split), autograph=False)
            for split in core.splits
        }

    def load(self, state: State) -> State:
        state = state if self._alone else self._chiefs(state)
        self._step = state.step
        for name, variable in self._vectors.items():
            for copy in self._strategy.experimental_local_results(variable):
                copy.assign(state.vectors[name])
        return state

    def _chiefs(self, own: State) -> State:
        step = int(self.gather(np.array([own.step], np.int64))[0, 0])
        joined, sizes = (
            self.gather(np.concatenate(list(own.vectors.values())))[0],
            self._core.layout.sizes(),
        )
        pieces = np.split(joined, np.cumsum(list(sizes.values()))[:-1])
        return State(step, dict(zip(sizes, pieces, strict=True)))

    def state(self) -> State:
        local = {
            name: self._strategy.experimental_local_results(v)[0]
            for name, v in self._vectors.items()
        }
        return State(self._step, {name: variable.numpy() for name, variable in local.items()})

    def advance(self, start: int, stop: int) -> Metrics:
        table, began = rates_of(self._core, start, stop), time.monotonic()
        signals = tf.constant([float(self._wants_stop()), self._seconds])
        tails = self._block(
            tf.constant(start, tf.int64), tf.constant(stop, tf.int64), tf.constant(table), signals
        ).numpy()
        self._step = start + len(tails)
        self._seconds = (time.monotonic() - began) / len(tails)
        shared = (
            {} if self._alone else {"seconds_per_step": float(tails[-1, TAIL.index("seconds")])}
        )
        return block_metrics(self._core, self._step, tails, table, self._seconds) | shared

    def evaluate(self, final: bool) -> Metrics:
        per_turn = self._strategy.num_replicas_in_sync * self._side_by_side

        def rows_of(split: str, count: int) -> np.ndarray:
            return np.concatenate([self._turn(split, at) for at in range(0, count, per_turn)])

        return evaluate_splits(self._core, final, rows_of)

    def _turn(self, split: str, first: int) -> np.ndarray:
        self._wants_stop()  # an evaluation is not cut short, but shows that it gets on
        return self._evaluate[split](tf.constant(first, tf.int64)).numpy()

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """One vector of each worker, of the same size and type, as rows in the order of the workers."""
        if self._alone:
            return vector[None]
        rows = self._strategy.experimental_local_results(self._gather(tf.constant(vector)))[
            0
        ].numpy()
        return rows[:: self._strategy.num_replicas_in_sync // self._strategy.extended._num_workers]

    @tf.function(autograph=False, reduce_retracing=True)
    def _gather(self, vector: tf.Tensor) -> tf.Tensor:
        def on_device(own: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_gather(own[None], axis=0)

        return self._strategy.run(on_device, args=(vector,))

    def close(self) -> None:
        self.gather(
            np.zeros(1, np.float32)
        )  # nobody leaves before the chief, whose process the others need

    def _build_block(self) -> Callable[..., tf.Tensor]:
        length, strategy, one_round = self._core.plan.round_steps, self._strategy, self._one_round

        def block(
            start: tf.Tensor, stop: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
        ) -> tf.Tensor:
            def goes_on(first: tf.Tensor, stopped: tf.Tensor, _: tf.TensorArray) -> tf.Tensor:
                return (first < stop) & ~stopped

            def body(
                first: tf.Tensor, _: tf.Tensor, rounds: tf.TensorArray
            ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
                last = tf.minimum(first + length, stop)
                tails = strategy.run(
                    one_round, args=(first, last, table[first - start : last - start], signals)
                )
                tails = strategy.experimental_local_results(tails)[0]
                stopped = (
                    tails[0, TAIL.index("stop")] > 0
                )  # every worker sees the same, so all stop after the same round
                return (
                    last,
                    stopped,
                    rounds.write(tf.cast((first - start) // length, tf.int32), tails),
                )

            count = tf.cast((stop - start + length - 1) // length, tf.int32)
            empty = tf.TensorArray(tf.float32, count, element_shape=[length, len(TAIL)])
            # two iterations at a time: the next batch is prepared while this one is trained on
            last, _, rounds = tf.while_loop(
                goes_on, body, [start, tf.constant(False), empty], parallel_iterations=2
            )
            return tf.reshape(rounds.stack(), [-1, len(TAIL)])[: last - start]

        return block

    def _one_round(
        self, first: tf.Tensor, last: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> tf.Tensor:
        """A round in a replica context: the replicas of this device side by side, the mean of all, the state after it."""
        vectors = {name: tf.identity(variable) for name, variable in self._vectors.items()}
        first_replica = (
            tf.distribute.get_replica_context().replica_id_in_sync_group * self._replicas_per_device
        )
        results = self._rounds.compute(
            vectors, first, last, table, signals, first_replica, self._replicas_per_device
        )
        new, tails = self._rounds.finish(vectors, self._mean(results), table)
        for name, variable in self._vectors.items():
            variable.assign(new[name])
        return tails

    def _mean(self, results: list[tf.Tensor]) -> tf.Tensor:
        """The mean over all replicas, by the tree. Two subtrees can meet in any order; more are gathered and added here."""
        context, devices = tf.distribute.get_replica_context(), self._strategy.num_replicas_in_sync
        total = tree_sum(results)
        if devices == 2 or (devices > 2 and not self._core.experiment.exact):
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
        elif devices > 2:
            total = tree_sum(tf.unstack(context.all_gather(total[None], axis=0), num=devices))
        return total / self._core.experiment.replicas

    def _build_evaluate(self, split: str) -> Callable[[tf.Tensor], tf.Tensor]:
        """A turn: whole batches from number `first` on, `side_by_side` on each device; rows come back in their order."""
        devices, count = self._strategy.num_replicas_in_sync, self._side_by_side
        params = self._vectors[evaluated_vector(self._vectors)]

        def on_device(first: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            number = first + tf.cast(context.replica_id_in_sync_group, tf.int64) * count
            weights, stats = tf.identity(params), tf.identity(self._vectors["stats"])
            rows = self._core.evaluate_batches(split, weights, stats, number, count)
            return rows if devices == 1 else context.all_gather(rows, axis=0)

        def turn(first: tf.Tensor) -> tf.Tensor:
            return self._strategy.experimental_local_results(
                self._strategy.run(on_device, args=(first,))
            )[0]

        return turn


def _local_variable(size: int) -> tf.Variable:
    """Each device updates its own copy; nothing travels when it is written."""
    return tf.Variable(
        tf.zeros([size]),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
