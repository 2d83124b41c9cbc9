"""Weights by the names of their variables, to start a model from."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import UserError
from paceline.experiment.experiment import KERAS
from paceline.maths.state import AVERAGED_STATS, State
from paceline.messages import Send, Warn
from paceline.run_folder.checkpoint_file import ANY_RUN, Array, Damaged, RunIdentity, read_variables
from paceline.run_folder.checkpoints import file_of, identity_of, list_steps
from paceline.run_folder.finding import existing_run
from paceline.storage.files import explained

if TYPE_CHECKING:
    from paceline.maths.replica import Core


def with_given_weights(state: State, core: Core, send: Send) -> State:
    """Return the state of step 0 with weights from the data or from an earlier training."""
    from paceline.maths.initial_values import start_from, whiten
    from paceline.models.fine_tuning import scaling_warning

    experiment = core.experiment
    if count := experiment.model.whitening:
        state = whiten(state, core.template, core.train, experiment.scaling, count)
    if source := experiment.model.init_from:
        if note := scaling_warning(experiment):
            send(Warn(note))
        state, new = start_from(source, read_weights(source), core.template, state)
        send(Warn(f"started from {source}; new are {', '.join(new) or 'none'}"))
    return state


def read_weights(spec: str) -> dict[str, np.ndarray]:
    """Return what `model.init_from` names: a run, a .keras file or weights of keras.applications.
    Of a run, these are the averages if it has them."""
    if spec.startswith(KERAS):
        from paceline.models.fine_tuning import read_application

        return read_application(spec)
    if spec.endswith(".keras"):
        from paceline.models.fine_tuning import read_keras_file

        return read_keras_file(spec)
    try:
        run = existing_run(spec)
    except UserError as error:
        raise type(error)(f"model.init-from: {error} (or give a .keras file)") from error
    vectors = ("ema", "params", AVERAGED_STATS, "stats")
    return newest_variables(run.checkpoints, vectors, identity_of(run))


def newest_variables(
    folder: Path, vectors: tuple[str, ...], run: RunIdentity = ANY_RUN
) -> dict[str, Array]:
    """Return the variables of the newest complete checkpoint by name. Each is taken from the first
    of `vectors` that has it."""
    for step in reversed(list_steps(folder)):
        path = file_of(folder, step)
        try:
            with explained("read", path):
                variables = read_variables(path, step, run)
        except Damaged as error:
            warnings.warn(f"{path} is damaged ({error}) and is not used", stacklevel=2)
            continue
        found: dict[str, Array] = {}
        for vector in reversed(vectors):
            found |= _of_vector(variables, vector)
        return found
    raise UserError(f"there is no complete checkpoint in {folder}; train that run first")


def _of_vector(variables: dict[str, Array], vector: str) -> dict[str, Array]:
    prefix = f"{vector}/"
    return {
        name.removeprefix(prefix): value
        for name, value in variables.items()
        if name.startswith(prefix)
    }
