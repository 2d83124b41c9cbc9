"""Random numbers by name."""

import numpy as np
import tensorflow as tf

from augmented import drawn_by_numpy
from paceline.data.draws import Draws, initializer_seed, op_key
from tiny import number

GOLDEN_KEYS = [
    [-2540988603501221065, 5815074143311781760],
    [6460128525710557222, -5134544645702925600],
]

GOLDEN_SEEDS = [1620184202, 976189129]


def test_random_numbers_are_splitmix64_of_name_seed_epoch_and_index():
    examples = np.array([0, 1, 7, 49_999, 2**40])
    for seed, epoch in [(0, 0), (5, 3), (2**62, 10**6)]:
        draws = Draws(seed, number(epoch), tf.constant(examples))
        for name in ("flip", "some feature/2"):
            wanted = drawn_by_numpy(name, seed, epoch, examples)
            np.testing.assert_array_equal(draws.one(name), wanted)
            np.testing.assert_array_equal(draws.several(["other", name])[:, 1], wanted)


def test_numbers_of_several_names_are_those_of_single_ones_in_a_graph_too() -> None:
    names = [f"crop/{k}" for k in range(8)]  # keys above and below 2**63

    @tf.function
    def draw(seed: int) -> tuple[tf.Tensor, tf.Tensor]:
        draws = Draws(seed, tf.constant(1, tf.int64), tf.range(5, dtype=tf.int64))
        return draws.several(names), tf.stack([draws.one(name) for name in names], axis=1)

    together, apart = draw(0)
    np.testing.assert_array_equal(together, apart)
    assert (together.numpy() != draw(1)[0].numpy()).all()


def test_golden_numbers_pin_the_keys_of_operations_and_initial_weights():
    keys = [op_key(name, 7, number(3), number(1)).numpy().tolist() for name in ("mixup", "layers")]
    assert keys == GOLDEN_KEYS
    seeds = [initializer_seed(f"weights/{layer}", 7) for layer in ("stem_conv", "head_dense")]
    assert seeds == GOLDEN_SEEDS
