"""The peak of the machine: float32 matrix products on all cores.

python -m benchmarks.contender_sgemm torch|tensorflow|numpy DEPTH

It is counted in images of the training of a ResNet.
"""

import os
import sys
from collections.abc import Callable

from benchmarks.flops import training_flops
from benchmarks.protocol import serve

SIDE = 2048


def build_product(library: str) -> Callable[[], object]:
    """Return a function that multiplies two square matrices and waits for the product."""
    if library == "torch":
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        left, right, out = (torch.randn(SIDE, SIDE) for _ in range(3))
        return lambda: torch.mm(left, right, out=out)
    if library == "tensorflow":
        import tensorflow as tf

        left, right = (tf.random.normal((SIDE, SIDE)) for _ in range(2))
        # One number is read back, because an eager op may return before it is done.
        return lambda: tf.matmul(left, right)[0, 0].numpy()
    import numpy as np

    generator = np.random.default_rng(0)
    left, right, out = (generator.standard_normal((SIDE, SIDE), np.float32) for _ in range(3))
    return lambda: np.matmul(left, right, out=out)


def main() -> None:
    library, depth = sys.argv[1], int(sys.argv[2])
    product = build_product(library)
    images_per_product = 2 * SIDE**3 / training_flops(depth)

    def multiply(steps: int) -> float:
        for _ in range(steps):
            product()
        return steps * images_per_product

    serve(multiply)


if __name__ == "__main__":
    main()
