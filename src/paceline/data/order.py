"""Which examples a step sees: functions from (seed, epoch, step, replica) to indices, in TensorFlow ops.

There is no stream and no buffer: any worker can compute any replica's slice of any step, and resuming is arithmetic.
"""

from __future__ import annotations

import tensorflow as tf

_SALT = 0x9ACE  # keeps the key of the order apart from other uses of the same seed


def shuffled(positions: tf.Tensor, size: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """A permutation of range(size) for each (seed, epoch), evaluated at `positions` (int64)."""
    key = tf.stack(
        [tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64), tf.constant(_SALT, tf.int64)]
    )
    return tf.raw_ops.RandomIndexShuffle(
        index=positions, seed=key, max_index=tf.constant(size - 1, tf.int64), rounds=8
    )


def slice_indices(
    step: tf.Tensor,
    replica: tf.Tensor,
    size: int,
    replicas: int,
    replica_batch_size: int,
    seed: int,
) -> tf.Tensor:
    """Indices of the examples of one replica in one step (int64 scalars), int64 [replica_batch_size].

    Step k of an epoch takes positions [kB, (k+1)B); the last size % B positions of an epoch are left out.
    """
    global_batch_size = replicas * replica_batch_size
    steps_per_epoch = size // global_batch_size
    epoch, step_in_epoch = step // steps_per_epoch, step % steps_per_epoch
    first = step_in_epoch * global_batch_size + replica * replica_batch_size
    return shuffled(first + tf.range(replica_batch_size, dtype=tf.int64), size, seed, epoch)
