"""Which examples a step sees: a function from (seed, step, replica) to indices, in TensorFlow ops.

There is no stream and no buffer: any worker can compute any replica's slice of any step, and
resuming is arithmetic.
"""

from __future__ import annotations

import tensorflow as tf

from paceline.experiment.experiment import Experiment
from paceline.experiment.plan import steps_per_epoch

_SALT = 0x9ACE  # keeps the key of the order apart from other uses of the same seed


def slice_indices(
    experiment: Experiment, size: int, step: tf.Tensor, replica: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the epoch of a step, and the indices of the examples of one replica in that step.

    Each (seed, epoch) has its own permutation of `size` examples. Step k of an epoch takes the
    positions [kB, (k+1)B) of it; B is the global batch size. `step`, `replica` and the epoch are
    int64 scalars, the indices int64 [replica_batch_size].
    """
    length, replica_batch_size = steps_per_epoch(experiment, size), experiment.replica_batch_size
    epoch, step_in_epoch = step // length, step % length
    first = step_in_epoch * experiment.global_batch_size + replica * replica_batch_size
    return epoch, tf.raw_ops.RandomIndexShuffle(
        index=first + tf.range(replica_batch_size, dtype=tf.int64),
        seed=tf.stack([tf.constant(experiment.seed, tf.int64), epoch, _SALT]),
        max_index=tf.constant(size - 1, tf.int64),
        rounds=8,
    )
