"""One checkpoint file: a safetensors file whose metadata say what it contains, verified on reading.

It owns the names and the metadata in the file. The metadata contain their own checksum, and the
digest of the state. Only what differs from that is `Damaged`: an OSError means that the file could
not be read, and says nothing about its content. Which files are kept belongs to `checkpoints`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as to_safetensors

from paceline.errors import UserError
from paceline.maths.state import State, StateLayout
from paceline.storage.files import sealed, unsealed
from paceline.storage.retry import retry
from paceline.versions import library_versions

FORMAT = 1
"""Of a checkpoint file. A newer Paceline writes a higher number."""
WEIGHTS = ["params", "stats"]
"""The vectors of a file with weights only, without the slots of an optimizer."""
LARGEST_HEADER = 100_000_000
"""In bytes; safetensors has the same limit."""

Array = npt.NDArray[np.float32]


class Damaged(Exception):
    """The file is not what was once written."""


def pack(state: State, layout: StateLayout, experiment_digest: str, metric: float | None) -> bytes:
    """Return the content of a checkpoint file."""
    variables = [[name, shape] for _, name, _, shape in layout.pieces()]
    metadata = {
        "format": str(FORMAT),
        "step": str(state.step),
        "state_sha256": state.sha256(),
        "experiment": experiment_digest,
        "vectors": json.dumps(list(layout.parts)),
        "variables": json.dumps(variables),
        "versions": json.dumps(library_versions()),
    }
    if metric is not None and math.isfinite(metric):
        metadata["metric"] = repr(float(metric))
    if len(state.tails):
        metadata["tails"] = json.dumps(state.tails.tolist())
    return to_safetensors(_tensors(state, layout), sealed(metadata))


def read_metric(path: Path) -> float | None:
    """Return the metric that a checkpoint was saved with. Raises Damaged and OSError."""
    metadata = retry(lambda: _read_metadata(path))
    try:
        metric = float(metadata.get("metric", "nan"))
    except ValueError as error:
        raise Damaged(f"its metric is {metadata['metric'][:40]!r}") from error
    return None if math.isnan(metric) else metric


def read_state(path: Path, step: int, layout: StateLayout) -> State:
    """Return the state in a file. Raises Damaged, OSError, and UserError if it does not fit."""
    content, metadata = _read(path)
    _check_metadata(path, metadata, step)
    vectors, wanted = json.loads(metadata["vectors"]), list(layout.parts)
    if vectors == WEIGHTS:
        layout = StateLayout({name: layout.parts[name] for name in vectors})
    elif vectors != wanted:
        raise UserError(
            f"{path} does not fit the model: it has the vectors {vectors}, not {wanted}"
        )
    tensors = _load(content, metadata)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if difference := _first_difference(shapes, layout):
        raise UserError(f"{path} does not fit the model: {difference}")
    values = {name: np.empty(size, dtype=np.float32) for name, size in layout.sizes().items()}
    del content  # of a large model, each copy takes gigabytes
    for vector, name, place, _ in layout.pieces():
        values[vector][place] = tensors.pop(name).reshape(-1)
    state = State(step, values, np.array(json.loads(metadata.get("tails", "[]")), np.float32))
    if state.sha256() != metadata.get("state_sha256"):
        raise Damaged("its contents do not have the digest they were saved with")
    return state


def read_variables(path: Path, step: int) -> dict[str, Array]:
    """Return every variable by its name in the file, verified. Raises Damaged and OSError."""
    content, metadata = _read(path)
    _check_metadata(path, metadata, step)
    tensors = _load(content, metadata)
    named = {name: tensors[name] for name, _ in json.loads(metadata["variables"])}
    digest = hashlib.sha256()
    for tensor in named.values():
        digest.update(np.ascontiguousarray(tensor, dtype="<f4").data)
    if digest.hexdigest() != metadata.get("state_sha256"):
        raise Damaged("its contents do not have the digest they were saved with")
    return named


def _tensors(state: State, layout: StateLayout) -> dict[str, Array]:
    """Return every variable as a view into its vector."""
    sizes = {name: vector.size for name, vector in state.vectors.items()}
    assert list(sizes.items()) == list(layout.sizes().items()), (sizes, layout.sizes())
    vectors = {
        name: np.ascontiguousarray(vector, dtype="<f4") for name, vector in state.vectors.items()
    }
    return {
        name: vectors[vector][place].reshape(shape)
        for vector, name, place, shape in layout.pieces()
    }


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    """Return content and metadata. The file is read, not mapped: an error of the disk is then an
    OSError, not the end of the process."""
    content = retry(path.read_bytes)
    return content, _parse_metadata(io.BytesIO(content))


def _read_metadata(path: Path) -> dict[str, str]:
    with open(path, "rb") as file:
        return _parse_metadata(file)


def _parse_metadata(file: IO[bytes]) -> dict[str, str]:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    header = file.read(min(length, LARGEST_HEADER))
    if len(start) < 8 or len(header) < length:
        raise Damaged("its header is cut short or damaged")
    try:
        metadata = json.loads(header).get("__metadata__") or {}
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("its header is not text")
        return unsealed(metadata)
    except (ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"its header is damaged: {str(error)[:100]}") from error


def _check_metadata(path: Path, metadata: dict[str, str], step: int) -> None:
    try:
        written_by, written_step = int(metadata["format"]), int(metadata["step"])
        json.loads(metadata["vectors"])
    except (KeyError, ValueError, RecursionError) as error:
        raise Damaged(f"its header lacks {str(error)[:100]}") from error
    if written_by > FORMAT:
        raise UserError(
            f"{path} was written by a newer Paceline (format {written_by}, this one reads "
            f"up to {FORMAT}); update Paceline"
        )
    if written_step != step:
        raise Damaged(f"its header has step {written_step}")


def _load(content: bytes, metadata: dict[str, str]) -> dict[str, Array]:
    """Return the tensors; their names and shapes must be those that the metadata list."""
    try:
        tensors = from_safetensors(content)
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        fits = dict(json.loads(metadata["variables"])) == shapes
    except (SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged((str(error).splitlines() or [type(error).__name__])[0][:200]) from error
    if not fits or any(tensor.dtype != np.float32 for tensor in tensors.values()):
        raise Damaged("its tensors are not those that it was saved with")
    return tensors


def _first_difference(shapes: dict[str, tuple[int, ...]], layout: StateLayout) -> str:
    wanted = {name: shape for _, name, _, shape in layout.pieces()}
    for name, shape in wanted.items():
        if name not in shapes:
            return f"it has no {name!r}, which the model has"
        if shapes[name] != shape:
            return f"{name!r} has the shape {shapes[name]}, in the model {shape}"
    extra = [name for name in shapes if name not in wanted]
    return f"it has {extra[0]!r}, which the model does not have" if extra else ""
