"""The signature of a replica: a number of 16 bits, computed from all bits of its vector.

Each replica puts its signature into its own place of the tail, where the others have zeros. So the
sum over the replicas, which all workers get, has the signatures of all of them, and a run can
record what each replica computed in each step. Only whole numbers are added: a signature costs one
look at the vector and does not depend on the order.
"""

from collections.abc import Sequence

import tensorflow as tf

PRIME = 65_521
"""Every bit of a 32-bit number changes its rest of the division by this."""


def sign(parts: Sequence[tf.Tensor], replica: tf.Tensor, replicas: int) -> tf.Tensor:
    """Return the places of all replicas, with the signature of a vector's parts in its own.
    TensorFlow adds whole numbers on the CPU alone, so vectors on a GPU are not signed."""
    if tf.config.list_logical_devices("GPU"):
        return tf.zeros([replicas])
    sums = [tf.reduce_sum(tf.bitcast(part, tf.int32)) for part in parts]
    signature = tf.math.floormod(tf.reduce_sum(tf.stack(sums)), PRIME)
    return tf.one_hot(replica, replicas, tf.cast(signature, tf.float32), 0.0)
