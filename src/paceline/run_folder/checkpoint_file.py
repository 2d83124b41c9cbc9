"""One checkpoint file: a safetensors file whose metadata say what it contains, verified on reading.

It owns the names and the metadata in the file. The metadata contain their own checksum, and the
digest of the state. Only what differs from that is `Damaged`: an OSError means that the file could
not be read, and says nothing about its content. Which files are kept belongs to `checkpoints`.
"""

import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as to_safetensors

from paceline.errors import UserError, first_line
from paceline.maths.state import State, StateLayout
from paceline.storage.files import read_run_file, retry, run_file, sealed, unsealed
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


@dataclass(frozen=True)
class RunIdentity:
    """What the metadata of a run's checkpoints must agree with. An empty one agrees with all."""

    experiment: str = ""
    """Digest of the experiment, without what may move."""
    last_step: int = -1
    last_state: str = ""
    """Step and digest of the last state of a finished run, from result.json."""

    def check(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Raise UserError if a checkpoint was not saved by this run."""
        differs = self.experiment not in ("", metadata.get("experiment"))
        is_last = int(metadata["step"]) == self.last_step
        if differs or (is_last and metadata["state_sha256"] != self.last_state):
            raise UserError(f"{path} belongs to a different run; remove it, or restore the run's")


ANY_RUN = RunIdentity()


def pack(state: State, layout: StateLayout, experiment_digest: str, metric: float | None) -> bytes:
    """Return the content of a checkpoint file, with one tensor for each variable."""
    sizes = {name: vector.size for name, vector in state.vectors.items()}
    assert list(sizes.items()) == list(layout.sizes().items()), (sizes, layout.sizes())
    vectors = {
        name: np.ascontiguousarray(vector, dtype="<f4") for name, vector in state.vectors.items()
    }
    pieces = list(layout.pieces())
    metadata = {
        "format": str(FORMAT),
        "step": str(state.step),
        "state_sha256": state.sha256(),
        "experiment": experiment_digest,
        "vectors": json.dumps(list(layout.parts)),
        "variables": json.dumps([[name, shape] for _, name, _, shape in pieces]),
        "versions": json.dumps(library_versions()),
    }
    if metric is not None and math.isfinite(metric):
        metadata["metric"] = repr(float(metric))
    if len(state.tails):
        metadata["tails"] = json.dumps(state.tails.tolist())
    tensors = {name: vectors[vector][at].reshape(shape) for vector, name, at, shape in pieces}
    return to_safetensors(tensors, sealed(metadata))


def read_metric(path: Path) -> float | None:
    """Return the metric that a checkpoint was saved with. Raises Damaged and OSError."""

    def read() -> dict[str, str]:
        with open(path, "rb", opener=run_file) as file:
            return _parse_metadata(file)

    metadata = retry(read)
    try:
        metric = float(metadata.get("metric", "nan"))
    except ValueError as error:
        raise Damaged(f"its metric is {metadata['metric'][:40]!r}") from error
    return None if math.isnan(metric) else metric


def read_state(path: Path, step: int, layout: StateLayout, run: RunIdentity) -> State:
    """Return the state in a file. Raises Damaged, OSError, and UserError if it does not fit."""
    tensors, metadata = _read(path, step, run)
    if json.loads(metadata["vectors"]) == WEIGHTS:
        layout = StateLayout({name: layout.parts[name] for name in WEIGHTS})
    found = {name: tensor.shape for name, tensor in tensors.items()}
    wanted = {name: shape for _, name, _, shape in layout.pieces()}
    for name in wanted | found:
        if found.get(name) != wanted.get(name):
            raise UserError(
                f"{path} does not fit the model: {name!r} is {found.get(name, 'missing')}, in the "
                f"model {wanted.get(name, 'missing')}"
            )
    values = {name: np.empty(size, dtype=np.float32) for name, size in layout.sizes().items()}
    for vector, name, at, _ in layout.pieces():
        values[vector][at] = tensors.pop(name).reshape(-1)  # a large model has gigabytes of them
    return State(step, values, np.array(json.loads(metadata.get("tails", "[]")), np.float32))


def read_variables(path: Path, step: int, run: RunIdentity) -> dict[str, Array]:
    """Return every variable by its name in the file, as `read_state` does."""
    return _read(path, step, run)[0]


def read_digest(path: Path, step: int) -> str:
    """Return the digest of the state in a file, of whichever run, as `read_state` does."""
    return _read(path, step, ANY_RUN)[1]["state_sha256"]


def _read(path: Path, step: int, run: RunIdentity) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the variables and the metadata, verified; a file of a different run is a UserError."""
    content = retry(lambda: read_run_file(path))  # mapped, a bad disk would end the process
    metadata = _parse_metadata(io.BytesIO(content))
    try:
        written_by, written_step = int(metadata["format"]), int(metadata["step"])
        if written_by > FORMAT:
            raise UserError(
                f"{path} was written by a newer Paceline (format {written_by}, this one reads "
                f"up to {FORMAT}); update Paceline"
            )
        shapes = {name: tuple(shape) for name, shape in json.loads(metadata["variables"])}
        tensors = from_safetensors(content)
        named = {name: tensors.pop(name) for name in shapes}
        json.loads(metadata["vectors"])
    except (SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(first_line(error)[:200]) from error
    wrong = [name for name, tensor in named.items() if tensor.dtype != np.float32]
    wrong += [name for name, tensor in named.items() if tensor.shape != shapes[name]]
    digest = hashlib.sha256()
    for tensor in named.values():
        digest.update(np.ascontiguousarray(tensor).data)
    if (
        written_step != step
        or wrong
        or tensors
        or digest.hexdigest() != metadata.get("state_sha256")
    ):
        raise Damaged("its step, or its contents, are not those that it was saved with")
    run.check(path, metadata)
    return named, metadata


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
