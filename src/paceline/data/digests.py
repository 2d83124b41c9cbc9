"""Digests of data sets: whether a resumed run, or another worker, has the same data.

Data in memory are digested completely. Of files, a source digests the list of all examples and the
content of some of them, from the first to the last. No TensorFlow.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

SAMPLES = 64


def spread(size: int, count: int = SAMPLES) -> list[int]:
    """Return up to `count` indices from the first to the last of `size`."""
    return sorted({k * (size - 1) // max(1, count - 1) for k in range(count)})


def digest_of(pieces: Iterable[bytes]) -> str:
    """Return a short digest; where one piece ends and the next begins matters."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()[:16]


def arrays_digest(*arrays: npt.NDArray[Any]) -> str:
    """Return the digest of types, shapes and values."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
