"""Which examples a step sees: a function from (seed, step, replica) to indices, in TensorFlow ops.

There is no stream and no buffer: any worker can compute any replica's slice of any step.
"""

import numpy as np
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
    places = first + tf.range(replica_batch_size, dtype=tf.int64)
    return epoch, _shuffled(places, size, experiment.seed, epoch)


def order(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order in which an epoch of training sees its examples, as indices.

    Step k of the epoch uses the k-th global batch, and the replicas use consecutive parts of it.
    The last examples are left out if they do not fill a batch.

    Args:
        num_examples: Number of training examples.
        seed: The experiment's seed.
        epoch: The epoch, from 0.

    Example:
        first_batch = paceline.order(50_000, seed=0, epoch=3)[:128]
    """
    places, number = np.arange(num_examples), tf.constant(epoch, tf.int64)
    found: np.ndarray = _shuffled(tf.constant(places), num_examples, seed, number).numpy()
    return found


def _shuffled(places: tf.Tensor, size: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Return the examples at these places of the order of an epoch."""
    return tf.raw_ops.RandomIndexShuffle(
        index=places,
        seed=tf.stack([tf.constant(seed, tf.int64), epoch, _SALT]),
        max_index=tf.constant(size - 1, tf.int64),
        rounds=8,
    )
