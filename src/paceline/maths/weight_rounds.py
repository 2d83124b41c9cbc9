"""Rounds of `sync.method weights`: each replica trains alone, then all vectors are averaged."""

from collections.abc import Callable, Sequence
from functools import cached_property

import tensorflow as tf

from paceline.experiment.schedule import Rates
from paceline.kernels.arithmetic import number, plain
from paceline.maths.metrics import tail_scale
from paceline.maths.replica import Core, Round, Step, opaque
from paceline.maths.state import STATISTICS
from paceline.maths.update import Vectors


class WeightCore(Core):
    """A core whose replicas train alone for a round, then average all vectors as one."""

    def round_vector(
        self, now: Round, replica: tf.Tensor, after: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        with tf.control_dependencies(after):
            state = tf.concat([now.vectors[name] for name in self.layout.parts], 0)
        return self._train_alone(state, now.first, now.last, now.table, now.signals, replica)

    def finish_round(
        self, vectors: Vectors, mean: tf.Tensor, table: tf.Tensor
    ) -> tuple[Vectors, tf.Tensor]:
        sizes, shape = self.layout.sizes(), [self.plan.round_steps, self.tail_size]
        *pieces, tails = tf.split(mean, [*sizes.values(), shape[0] * shape[1]])
        new = dict(zip(sizes, pieces, strict=True))
        for name in STATISTICS:
            if name in new:
                new[name] = self.template.keep_fixed(vectors[name], new[name])
        tail = number(tf.reshape(tails, shape)) * tail_scale(self.experiment.replicas)
        return new, plain(tail)

    @cached_property
    def _train_alone(self) -> Callable[..., tf.Tensor]:
        return opaque(self._train_steps)

    def _train_steps(
        self,
        state: tf.Tensor,
        first: tf.Tensor,
        last: tf.Tensor,
        table: tf.Tensor,
        signals: tf.Tensor,
        replica: tf.Tensor,
    ) -> tf.Tensor:
        """Return [state after the steps | tail of each step]."""
        sizes = self.layout.sizes()

        def body(
            step: tf.Tensor, vector: tf.Tensor, tails: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
            vectors = dict(zip(sizes, tf.split(vector, list(sizes.values())), strict=True))
            now = Step(step, replica, signals)
            own = self.replica_vector(vectors["params"], vectors["stats"], now)
            new = self.apply(vectors, own, Rates.of_row(table[step - first]))
            tails = tails.write(tf.cast(step - first, tf.int32), own[-self.tail_size :])
            return step + 1, tf.concat([new[name] for name in sizes], 0), tails

        empty = tf.TensorArray(tf.float32, self.plan.round_steps, element_shape=[self.tail_size])
        _, joined, tails = tf.while_loop(
            lambda step, *_: step < last, body, [first, state, empty], parallel_iterations=2
        )
        return tf.concat([joined, tf.reshape(tails.stack(), [-1])], 0)
