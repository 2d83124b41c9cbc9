"""NumPy arrays in .npy and .npz files, read without trust: memory is bounded by the file.

`numpy.load` allocates what the header of an array claims before it reads, and lets errors of
`zipfile` and `zlib` through. Here a header must fit the bytes that follow it.
"""

import errno
import io
import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOST_UNPACKED_BYTES = 1 << 30
"""Of all arrays of an .npz file together. A small file can claim to unpack to petabytes."""
KINDS = "biufU"
READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""By the version of the format .npy."""


def read_npy(path: Path) -> Array:
    """Return the array in a file. Raises OSError, and ValueError if the file is damaged."""
    with open(path, "rb") as file:
        content = file.read()  # all: of some files that cannot be read, the kernel says the size 0
        missing = os.fstat(file.fileno()).st_size - len(content)
        return _parse_npy(content + read_exactly(file, max(0, missing)))


def read_exactly(file: IO[bytes], size: int) -> bytes:
    """Return `size` bytes of a file that is long enough. Fewer are a fault of the disk: OSError.

    `numpy.fromfile` is not used for files: it returns fewer numbers if the disk fails.
    """
    content = file.read(size)
    if len(content) < size:
        raise OSError(errno.EIO, f"only {len(content):,} of {size:,} bytes could be read")
    return content


def parse_npz(content: bytes) -> dict[str, Array]:
    """Return the arrays in an .npz file by name. Raises ValueError if it is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > MOST_UNPACKED_BYTES:
                raise ValueError(f"it unpacks to more than {MOST_UNPACKED_BYTES >> 20} MB")
            # ZipFile verifies the CRC of a member at its end
            return {
                member.filename.removesuffix(".npy"): _parse_npy(archive.read(member))
                for member in members
            }
    except ValueError:
        raise
    except Exception as error:  # a damaged archive can raise anything: zlib.error, EOFError ...
        raise ValueError(f"it is damaged: {type(error).__name__}: {error}") from error


def _parse_npy(content: bytes) -> Array:
    file = io.BytesIO(content)
    try:
        shape, fortran, kind = READERS[np.lib.format.read_magic(file)](file)
    except Exception as error:  # a damaged header is parsed as Python and can raise anything
        raise ValueError(f"its header is damaged: {type(error).__name__}") from error
    size = len(content) - file.tell()
    if kind.kind not in KINDS or not kind.itemsize:
        raise ValueError(f"it has the type {kind}, not numbers")
    if len(shape) > 32 or any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"it has the shape {shape}"[:100])
    if math.prod(shape) * kind.itemsize != size:
        needed = math.prod(shape) * kind.itemsize
        raise ValueError(f"its shape needs {needed} bytes, but {size} follow"[:200])
    flat: Array = np.frombuffer(content, kind, math.prod(shape), file.tell())
    return flat.reshape(shape, order="F" if fortran else "C")
