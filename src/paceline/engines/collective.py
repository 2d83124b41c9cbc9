"""The collective engine: replicas meet in `tf.distribute`, on one device, on mirrored devices, or in several processes.

Each device holds the whole state and computes its share of the replicas, a whole subtree; the sums of the subtrees meet in an
all-reduce or a gather, and every device applies the same update to its own copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.schedule import rates
from paceline.training.checkpoint import State
from paceline.training.evaluate import num_batches, summarise
from paceline.training.loop import Metrics
from paceline.training.replica import EVAL_BATCH_SIZE, TAIL, Core
from paceline.training.tree import opaque, tree_sum
from paceline.training.update import Vectors


class CollectiveEngine:
    """Advances a state on the devices of one `tf.distribute` strategy, `side_by_side` replicas of a device at a time."""

    def __init__(self, core: Core, strategy: tf.distribute.Strategy, side_by_side: int) -> None:
        self._core, self._strategy, self._side_by_side = core, strategy, side_by_side
        self._replicas_per_device = core.experiment.replicas // strategy.num_replicas_in_sync
        self._step, self._stop_requested = 0, 0.0
        with strategy.scope():
            self._vectors = {name: _local_variable(core.layout.sizes()[name]) for name in core.layout.parts}
        self._block = tf.function(self._build_block(), autograph=False, reduce_retracing=True)
        self._evaluate = {split: tf.function(self._build_evaluate(split), autograph=False) for split in core.splits}

    def load(self, state: State) -> None:
        self._step = state.step
        for name, variable in self._vectors.items():
            for copy in self._strategy.experimental_local_results(variable):
                copy.assign(state.vectors[name])

    def state(self) -> State:
        local = {name: self._strategy.experimental_local_results(v)[0] for name, v in self._vectors.items()}
        return State(self._step, {name: variable.numpy() for name, variable in local.items()})

    def advance(self, start: int, stop: int) -> Metrics:
        plan, batch_size = self._core.plan, self._core.experiment.global_batch_size
        table = np.array(rates(self._core.experiment, start, stop, plan.steps_per_epoch, plan.total_steps), np.float32)
        began = time.monotonic()
        tails = self._block(
            tf.constant(start, tf.int64), tf.constant(stop, tf.int64), tf.constant(table), tf.constant(self._stop_requested)
        ).numpy()
        seconds = (time.monotonic() - began) / (stop - start)
        self._step = stop
        loss, correct, count, _ = tails.T
        return {
            "epoch": stop / plan.steps_per_epoch,
            "loss": float(loss.mean()),
            "accuracy": float((correct / count).mean()),
            "learning_rate": float(table[-1, 0]),
            "images_per_second": batch_size / seconds,
            "seconds_per_step": seconds,
            "per_step": {
                "loss": loss.tolist(),
                "accuracy": (correct / count).tolist(),
                "learning_rate": table[:, 0].tolist(),
            },
        }

    def evaluate(self, final: bool) -> Metrics:
        """The validation split where there is one, else the test split; at the end, both."""
        names = [name for name in self._core.splits if final or name == "validation" or "validation" not in self._core.splits]
        metrics: Metrics = {}
        for name in names:
            metrics |= summarise(
                name, self._evaluate[name]().numpy()[: num_batches(self._core.splits[name].size, EVAL_BATCH_SIZE)]
            )
        return metrics

    def close(self) -> None:
        """Nothing to give back: devices belong to the process."""

    def _build_block(self) -> Callable[..., tf.Tensor]:
        weights = self._core.experiment.sync.method == "weights"
        length, strategy = self._core.plan.round_steps, self._strategy
        one_round = self._build_weights_round() if weights else self._gradients_round

        def block(start: tf.Tensor, stop: tf.Tensor, table: tf.Tensor, stop_requested: tf.Tensor) -> tf.Tensor:
            def body(first: tf.Tensor, rounds: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
                last = tf.minimum(first + length, stop)
                tails = strategy.run(one_round, args=(first, last, table[first - start : last - start], stop_requested))
                tails = strategy.experimental_local_results(tails)[0]
                return first + length, rounds.write(tf.cast((first - start) // length, tf.int32), tails)

            count = tf.cast((stop - start + length - 1) // length, tf.int32)
            empty = tf.TensorArray(tf.float32, count, element_shape=[length, len(TAIL)])
            # two iterations at a time: the next batch is prepared while this one is trained on
            _, rounds = tf.while_loop(lambda first, _: first < stop, body, [start, empty], parallel_iterations=2)
            return tf.reshape(rounds.stack(), [-1, len(TAIL)])[: stop - start]

        return block

    def _gradients_round(self, step: tf.Tensor, last: tf.Tensor, table: tf.Tensor, stop_requested: tf.Tensor) -> tf.Tensor:
        """One step in a replica context: the replicas of this device side by side, the mean of all, the update."""
        vectors = {name: tf.identity(variable) for name, variable in self._vectors.items()}

        def compute(replica: tf.Tensor) -> tf.Tensor:
            batch = self._core.batch(step, replica)
            return self._core.replica_step(
                vectors["params"], vectors["stats"], batch.images, batch.targets, batch.labels, step, replica, stop_requested
            )

        mean = self._mean(self._each_replica(compute))
        self._assign(self._core.apply(vectors, mean, table[0]))
        return self._core.tail(mean)[None] * self._tail_scale()

    def _build_weights_round(self) -> Callable[..., tf.Tensor]:
        """A round of the method `weights`: each replica trains alone, then all vectors are averaged as one."""
        core, length = self._core, self._core.plan.round_steps
        sizes = [core.layout.sizes()[name] for name in core.layout.parts]

        @opaque
        def train_alone(
            state: tf.Tensor, first: tf.Tensor, last: tf.Tensor, table: tf.Tensor, stop: tf.Tensor, replica: tf.Tensor
        ) -> Any:
            def body(step: tf.Tensor, vector: tf.Tensor, tails: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
                vectors = dict(zip(core.layout.parts, tf.split(vector, sizes), strict=True))
                batch = core.batch(step, replica)
                own = core.replica_step(
                    vectors["params"], vectors["stats"], batch.images, batch.targets, batch.labels, step, replica, stop
                )
                new = core.apply(vectors, own, table[step - first])
                joined = tf.concat([new[name] for name in core.layout.parts], 0)
                return step + 1, joined, tails.write(tf.cast(step - first, tf.int32), core.tail(own))

            empty = tf.TensorArray(tf.float32, length, element_shape=[len(TAIL)])
            _, joined, tails = tf.while_loop(lambda step, *_: step < last, body, [first, state, empty], parallel_iterations=2)
            return tf.concat([joined, tf.reshape(tails.stack(), [-1])], 0)

        def one_round(first: tf.Tensor, last: tf.Tensor, table: tf.Tensor, stop_requested: tf.Tensor) -> tf.Tensor:
            state = tf.concat([tf.identity(variable) for variable in self._vectors.values()], 0)
            mean = self._mean(
                self._each_replica(lambda replica: train_alone(state, first, last, table, stop_requested, replica))
            )
            *pieces, tails = tf.split(mean, [*sizes, length * len(TAIL)])
            self._assign(dict(zip(core.layout.parts, pieces, strict=True)))
            return tf.reshape(tails, [length, len(TAIL)]) * self._tail_scale()

        return one_round

    def _each_replica(self, compute: Callable[[tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
        """Compute this device's replicas, no more at a time than run side by side."""
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * self._replicas_per_device
        results: list[tf.Tensor] = []
        for k in range(self._replicas_per_device):
            before = results[k - self._side_by_side : k - self._side_by_side + 1] if k >= self._side_by_side else []
            with tf.control_dependencies(before):
                results.append(compute(tf.cast(first + k, tf.int64)))
        return results

    def _mean(self, results: list[tf.Tensor]) -> tf.Tensor:
        """The mean over all replicas, by the tree. Two subtrees can meet in any order; more are gathered and added here."""
        context, devices = tf.distribute.get_replica_context(), self._strategy.num_replicas_in_sync
        total = tree_sum(results)
        if devices == 2 or (devices > 2 and not self._core.experiment.exact):
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
        elif devices > 2:
            total = tree_sum(tf.unstack(context.all_gather(total[None], axis=0), num=devices))
        return total / self._core.experiment.replicas

    def _tail_scale(self) -> tf.Tensor:
        """Loss is a mean over replicas; correct, count and stop are sums."""
        replicas = float(self._core.experiment.replicas)
        return tf.constant([1.0, replicas, replicas, replicas])

    def _assign(self, vectors: Vectors) -> None:
        for name, variable in self._vectors.items():
            variable.assign(vectors[name])

    def _build_evaluate(self, split: str) -> Callable[[], tf.Tensor]:
        """Whole batches are dealt to devices in turn, `side_by_side` at a time; rows come back in the order of the batches."""
        devices, lanes, evaluate = self._strategy.num_replicas_in_sync, self._side_by_side, self._core.evaluate_batch[split]
        turns = num_batches(self._core.splits[split].size, EVAL_BATCH_SIZE * devices * lanes)
        params = self._vectors.get("ema", self._vectors["params"])

        def on_device() -> tf.Tensor:
            device = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
            weights, stats = tf.identity(params), tf.identity(self._vectors["stats"])

            def body(turn: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
                numbers = [(turn * lanes + lane) * devices + device for lane in range(lanes)]
                sums = tf.stack([evaluate(weights, stats, number) for number in numbers])
                return turn + 1, rows.write(tf.cast(turn, tf.int32), sums)

            empty = tf.TensorArray(tf.float32, turns, element_shape=[lanes, 4])
            _, rows = tf.while_loop(
                lambda turn, _: turn < turns, body, [tf.constant(0, tf.int64), empty], parallel_iterations=1
            )
            own = tf.reshape(rows.stack(), [1, turns * lanes, 4])
            return own if devices == 1 else tf.distribute.get_replica_context().all_gather(own, axis=0)

        def run() -> tf.Tensor:
            rows = self._strategy.experimental_local_results(self._strategy.run(on_device))[0]
            return tf.reshape(tf.transpose(rows, [1, 0, 2]), [-1, 4])

        return run


def _local_variable(size: int) -> tf.Variable:
    """Each device updates its own copy; nothing travels when it is written."""
    return tf.Variable(
        tf.zeros([size]),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
