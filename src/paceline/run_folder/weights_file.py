"""A checkpoint with weights only: what evaluation takes, without the slots of the optimizer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from paceline.errors import UserError
from paceline.maths.state import Part, State, StateLayout, evaluated_vectors
from paceline.run_folder.checkpoint_file import WEIGHTS, Damaged, pack, read_variables
from paceline.run_folder.checkpoints import file_of


def write_weights(checkpoints: Path, folder: Path, step: int, experiment_digest: str) -> Path:
    """Write the weights of the checkpoint of `step` into a file of the same name in `folder`.

    They are the averaged ones if the training kept an average.
    """
    source_file, target = file_of(checkpoints, step), file_of(folder, step)
    try:
        tensors = read_variables(source_file, step)
    except (Damaged, OSError) as error:
        raise UserError(f"{source_file} cannot be read: {error}") from error
    evaluated = evaluated_vectors({each.partition("/")[0] for each in tensors})
    parts: dict[str, Part] = {}
    vectors: dict[str, np.ndarray] = {}
    for vector, source in zip(WEIGHTS, evaluated, strict=True):
        own = {
            each.removeprefix(f"{source}/"): array
            for each, array in tensors.items()
            if each.startswith(f"{source}/")
        }
        parts[vector] = tuple((each, array.shape) for each, array in own.items())
        flat = [array.reshape(math.prod(array.shape)) for array in own.values()]
        vectors[vector] = np.concatenate([*flat, np.zeros(0, np.float32)])
    content = pack(State(step, vectors), StateLayout(parts), experiment_digest, None)
    target.write_bytes(content)
    return target
