"""Weights to start from, by variable name: of keras.applications, or of a .keras file."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from paceline.errors import UserError
from paceline.experiment.experiment import parse_application
from paceline.models.applications import application_weights
from paceline.models.batch_norm import FusedBatchNormalization
from paceline.models.variable_names import relative_names
from paceline.storage.locations import is_remote


def read_application(spec: str) -> dict[str, np.ndarray]:
    """Return the published weights of keras:NAME."""
    return _by_name(application_weights(*parse_application(spec)))


def read_keras_file(file: str) -> dict[str, np.ndarray]:
    """Return the weights of a .keras file. It runs no code of the file."""
    if is_remote(file):
        raise UserError(
            f"model.init-from is {file}; on remote storage it can be a run folder only: copy the "
            ".keras file to this machine first"
        )
    if not Path(file).is_file():
        raise UserError(f"model.init-from: there is no file {file}")
    own = {"FusedBatchNormalization": FusedBatchNormalization}
    try:
        model = keras.models.load_model(file, custom_objects=own, compile=False, safe_mode=True)
    except (ValueError, OSError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"model.init-from: {file} cannot be read: {reason}") from error
    return _by_name(model)


def _by_name(model: keras.Model) -> dict[str, np.ndarray]:
    names = relative_names(model, model.weights)
    return dict(zip(names, (v.numpy() for v in model.weights), strict=True))
