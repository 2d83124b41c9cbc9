"""The initial weights that Keras lacks: a convolution that begins as a copy of its input."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


@keras.saving.register_keras_serializable("paceline")
class Identity(keras.initializers.Initializer):
    """The first outputs of a convolution are its inputs, the others have uniform weights of the
    variance 1 / (3 fan-in)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        height, width, inputs, outputs = shape
        limit = (height * width * inputs) ** -0.5
        uniform = keras.random.uniform(shape, -limit, limit, dtype=dtype, seed=self.seed)
        kernel = np.array(uniform)
        common = np.arange(min(inputs, outputs))
        kernel[..., : len(common)] = 0
        kernel[height // 2, width // 2, common, common] = 1
        return keras.ops.convert_to_tensor(kernel, dtype)

    def get_config(self) -> dict[str, int]:
        return {"seed": self.seed}
