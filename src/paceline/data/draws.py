"""Random numbers by name: every random choice of an experiment has a name of its own.

A number depends on its name, the seed and what it is drawn for (an epoch and an example, or a step
and a replica), and on nothing else. So it does not matter who draws it or when, and a new feature
with new names leaves the numbers, and thereby the bits, of all existing experiments as they are.

Names are part of the experiment: renaming one changes results, and is recorded in CHANGELOG.md.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Draws:
    """The random numbers of the examples `indices` (int64 [n]) in `epoch` (int64 scalar).

    TensorFlow's own stateless operations take one key for each call, not one for each example.
    """

    seed: int
    epoch: tf.Tensor
    indices: tf.Tensor

    def one(self, name: str) -> tf.Tensor:
        """Return a number below 2**31 for each example, int64 [n]."""
        return self.several([name])[:, 0]

    def several(self, names: Sequence[str]) -> tf.Tensor:
        """Return the numbers of several names as columns, int64 [n, len(names)]."""
        keys = _mix(tf.cast(self.epoch, tf.uint64) + _start(names, self.seed))
        words = _mix(tf.cast(self.indices, tf.uint64)[:, None] + keys)
        return tf.cast(tf.bitwise.right_shift(words, tf.constant(33, tf.uint64)), tf.int64)


def unit(numbers: tf.Tensor) -> tf.Tensor:
    """Return random numbers below 2**31 as numbers of [0, 1)."""
    return tf.cast(numbers, tf.float64) / 2.0**31


def op_key(name: str, seed: int, *numbers: tf.Tensor) -> tf.Tensor:
    """Return the seed of one of TensorFlow's stateless operations, int64 [2]."""
    with tf.device("CPU:0"):
        key = _start([name], seed)
        for number in numbers:
            key = _mix(key + tf.cast(number, tf.uint64))
        return tf.bitcast(tf.concat([key, _mix(key)], 0), tf.int64)


def initializer_seed(name: str, seed: int) -> int:
    """Return the seed of a Keras initializer, below 2**31."""
    return _hash(f"{name}/{seed}") >> 33


def _start(names: Sequence[str], seed: int) -> tf.Tensor:
    # An array, because TensorFlow makes floats of a list with numbers above and below 2**63.
    keys = np.array([_hash(name) ^ seed % 2**63 for name in names], np.uint64)
    return _mix(tf.constant(keys))


def _hash(name: str) -> int:
    """Return 64 bits that depend on the name alone, unlike Python's own `hash`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Return the splitmix64 hash of each number."""

    def xor_shift(value: tf.Tensor, bits: int) -> tf.Tensor:
        shifted = tf.bitwise.right_shift(value, tf.constant(bits, tf.uint64))
        return tf.bitwise.bitwise_xor(value, shifted)

    x = x + tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    x = xor_shift(x, 30) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    x = xor_shift(x, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return xor_shift(x, 31)
