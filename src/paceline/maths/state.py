"""The training state as plain NumPy data, and which variables its vectors hold. No TensorFlow."""

import hashlib
import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Part = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of each variable of a vector, in order."""


@dataclass(frozen=True, eq=False)
class State:
    """Everything that training changes: flat float32 vectors in a fixed order, after some steps."""

    step: int
    vectors: dict[str, npt.NDArray[np.float32]]
    tails: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros([0, 0], np.float32))
    """Of a state that survived the loss of a worker: what the last steps before `step` reported, a
    row each, because nobody may have written it down (`maths.metrics.Tail`)."""

    @property
    def reported_step(self) -> int:
        """Return the step up to which the metrics that led to this state are written down."""
        return self.step - len(self.tails)

    def sha256(self) -> str:
        """Return the digest of all vectors, not of the step: equal vectors have equal digests."""
        digest = hashlib.sha256()
        for vector in self.vectors.values():
            digest.update(np.ascontiguousarray(vector, dtype="<f4").data)
        return digest.hexdigest()


@dataclass(frozen=True)
class StateLayout:
    """For each vector of a state, in order: the name and shape of every variable in it."""

    parts: dict[str, Part]

    def sizes(self) -> dict[str, int]:
        """Return the length of each vector."""
        return {
            vector: sum(math.prod(shape) for _, shape in variables)
            for vector, variables in self.parts.items()
        }

    def pieces(self) -> Iterator[tuple[str, str, slice, tuple[int, ...]]]:
        """Yield for every variable: its vector, its name in a file, its slice and its shape."""
        for vector, variables in self.parts.items():
            start = 0
            for name, shape in variables:
                stop = start + math.prod(shape)
                yield vector, f"{vector}/{name}", slice(start, stop), tuple(shape)
                start = stop


AVERAGED_STATS = "ema_stats"
"""Name of the vector with the moving average of the statistics."""
STATISTICS = ("stats", AVERAGED_STATS)
LOSS_SCALE = "loss_scale"
"""Name of the vector of float16: the scale, and the finite steps since it changed."""
SCALE_PART: Part = (("scale", ()), ("finite_steps", ()))


def evaluated_vectors(names: Container[str]) -> tuple[str, str]:
    """Return the names of the parameters and statistics that evaluation and export take: the moving
    averages if the experiment keeps them."""
    params = "ema" if "ema" in names else "params"
    return params, AVERAGED_STATS if AVERAGED_STATS in names else "stats"
