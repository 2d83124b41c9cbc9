"""The sum over replicas as NumPy computes it, pair by pair."""

import numpy as np


def leaves(replicas: int, size: int = 48) -> list[np.ndarray]:
    """Of very different sizes, so that another order rounds differently."""
    random = np.random.default_rng(replicas)
    values = random.normal(size=(replicas, size)) * 10.0 ** random.integers(-3, 4, (replicas, size))
    return list(values.astype(np.float32))


def tree_by_numpy(values: list[np.ndarray]) -> np.ndarray:
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return np.add(tree_by_numpy(values[:half]), tree_by_numpy(values[half:]))


def assert_same_bits(one: np.ndarray, other: np.ndarray) -> None:
    assert one.dtype == other.dtype == np.float32
    assert one.tobytes() == other.tobytes()
