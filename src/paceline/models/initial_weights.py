"""Initial weights from integer hashes: the same bits on every CPU, which normal numbers from
logarithms and cosines do not promise.

A weight depends on the seed, the name of its layer and its position, and on nothing else.
"""

import hashlib
import math
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from paceline.experiment.fields import Json

Words = npt.NDArray[np.uint64]
Kernel = npt.NDArray[np.float32]

TRUNCATED_DEVIATION = 0.87962566103423978
"""Standard deviation of normal numbers of which those beyond two deviations are drawn again."""
KINDS = {
    "he_normal": (2.0, "fan_in", "truncated"),
    "he_fan_out": (2.0, "fan_out", "normal"),
    "lecun_normal": (1.0, "fan_in", "truncated"),
    "glorot_uniform": (1.0, "fan_mean", "uniform"),
    "uniform": (1.0, "one", "uniform"),
}
"""By name: the variance times the fan, which fan, and the distribution."""


@keras.saving.register_keras_serializable("paceline")
class InitialWeights(keras.initializers.Initializer):
    """The first weights of a layer."""

    def __init__(self, kind: str, layer: str, seed: int) -> None:
        self.kind, self.layer, self.seed = kind, layer, seed

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        kernel = initial_kernel(self.kind, self.layer, self.seed, tuple(shape))
        return keras.ops.convert_to_tensor(kernel, dtype)

    def get_config(self) -> Json:
        return {"kind": self.kind, "layer": self.layer, "seed": self.seed}


def initial_kernel(kind: str, layer: str, seed: int, shape: tuple[int, ...]) -> Kernel:
    """Return the weights of a convolution or dense layer, [..., inputs, outputs]."""
    size, area = math.prod(shape), math.prod(shape[:-2])
    fans = {"one": 1.0, "fan_in": area * shape[-2], "fan_out": area * shape[-1]}
    fans["fan_mean"] = (fans["fan_in"] + fans["fan_out"]) / 2
    text = f"weights/{layer}/{seed}".encode()
    key = np.uint64(int.from_bytes(hashlib.sha256(text).digest()[:8], "little"))
    if kind == "identity":
        return _identity(key, shape, fans["fan_in"])
    variance, fan, distribution = KINDS[kind]
    deviation = math.sqrt(variance / fans[fan])
    if distribution == "uniform":
        numbers = math.sqrt(3.0) * deviation * _uniform(key, size)
    elif distribution == "normal":
        numbers = deviation * _normal(key, size)
    else:
        numbers = deviation / TRUNCATED_DEVIATION * _truncated(key, size)
    return numbers.astype(np.float32).reshape(shape)


def _identity(key: np.uint64, shape: tuple[int, ...], fan: float) -> Kernel:
    """The first outputs are the inputs, the others have uniform weights of variance 1/(3 fan)."""
    height, width, inputs, outputs = shape
    numbers = _uniform(key, math.prod(shape)) / math.sqrt(fan)
    kernel = numbers.astype(np.float32).reshape(shape)
    common = np.arange(min(inputs, outputs))
    kernel[..., : len(common)] = 0
    kernel[height // 2, width // 2, common, common] = 1
    return kernel


def _truncated(key: np.uint64, size: int) -> npt.NDArray[np.float64]:
    numbers = _normal(key, size)
    while (beyond := np.abs(numbers) > 2).any():
        key = _mix(np.array([key]))[0]
        numbers = np.where(beyond, _normal(key, size), numbers)
    return numbers


def _normal(key: np.uint64, size: int) -> npt.NDArray[np.float64]:
    """Return sums of twelve uniform numbers of 16 bits, whose variance is 1."""
    words = _mix(key + np.arange(3 * size, dtype=np.uint64)).astype("<u8")
    sums = words.view("<u2").reshape(size, 12).sum(1, dtype=np.int64)
    return np.asarray((sums - 6 * 65535) / 65536)


def _uniform(key: np.uint64, size: int) -> npt.NDArray[np.float64]:
    """Return numbers of (-1, 1)."""
    words = _mix(key + np.arange(size, dtype=np.uint64)) >> np.uint64(40)
    return (2 * words.astype(np.int64) + 1 - 2**24) / 2**24


def _mix(x: Words) -> Words:
    """Return the splitmix64 hash of each number, as `data.draws`."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
