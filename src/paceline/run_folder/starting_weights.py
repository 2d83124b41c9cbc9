"""The weights that `model.init_from` names: of a run, of a .keras file or of keras.applications."""

from __future__ import annotations

import numpy as np

from paceline.errors import UserError
from paceline.experiment.experiment import KERAS
from paceline.maths.state import AVERAGED_STATS
from paceline.run_folder.checkpoints import newest_variables
from paceline.run_folder.finding import existing_run


def read_weights(spec: str) -> dict[str, np.ndarray]:
    """Return the arrays by the names of their variables; of a run, the averages if it has them."""
    if spec.startswith(KERAS):
        from paceline.models.stored_weights import read_application

        return read_application(spec)
    if spec.endswith(".keras"):
        from paceline.models.stored_weights import read_keras_file

        return read_keras_file(spec)
    try:
        run = existing_run(spec)
    except UserError as error:
        raise type(error)(f"model.init-from: {error} (or give a .keras file)") from error
    return newest_variables(run.checkpoints, ("ema", "params", AVERAGED_STATS, "stats"))
