"""Where training starts from: weights of an earlier run, of a .keras file or of keras.applications,
with what does not fit (the head) left new."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from paceline.errors import UserError
from paceline.experiment.application_names import is_application, parse_application
from paceline.experiment.experiment import Experiment
from paceline.extras.zoo import PREFIX
from paceline.maths.state import AVERAGED_STATS, Part, State, evaluated_vectors
from paceline.maths.template import Template, relative_names
from paceline.models.applications import application_weights, own_scaling
from paceline.models.batch_norm import FusedBatchNormalization
from paceline.runs.checkpoints import newest_variables
from paceline.runs.finding import existing_run
from paceline.runs.folder import RunFolder
from paceline.storage.backends import is_remote


def start_from(spec: str, template: Template, state: State) -> tuple[State, list[str]]:
    """Return the state with every variable of `spec`, a run folder, a .keras file or keras:NAME,
    that has the same name and shape; and the rest's names."""
    if is_application(spec):
        known = _by_name(application_weights(*parse_application(spec)))
    else:
        known = _from_keras(spec) if spec.endswith(".keras") else _from_run(spec)
    params, new_params = _fill(template.params, state.vectors["params"], known)
    stats, new_stats = _fill(template.stats, state.vectors["stats"], known)
    new = new_params + new_stats
    count = len(template.params + template.stats)
    if len(new) > count // 2:
        raise UserError(
            f"model.init-from {spec} fits only {count - len(new)} of {count} variables; {new[0]}, "
            "for example, does not fit. It must be of the same kind of model"
        )
    evaluated = dict(zip(evaluated_vectors(state.vectors), (params, stats), strict=True))
    vectors = {**state.vectors, **evaluated, "params": params, "stats": stats}
    return State(state.step, vectors), new


def scaled_otherwise(experiment: Experiment) -> str:
    """Return a warning if images are scaled otherwise than those the weights were trained on."""
    spec, scaling = experiment.model.init_from, experiment.scaling
    if not is_application(spec):
        return ""
    own = own_scaling(parse_application(spec)[0])
    if own == scaling:
        return ""
    return (
        f"{spec} was trained on images of a different scaling ({own.method}, mean {own.mean}, std "
        f"{own.std}); use --scaling.method application"
    )


def _fill(
    part: Part, vector: np.ndarray, known: dict[str, np.ndarray]
) -> tuple[np.ndarray, list[str]]:
    pieces, new, place = [], [], 0
    for name, shape in part:
        size = int(np.prod(shape))
        # a Sequential model that was built as one puts its own name first; loaded from a file, it
        # does not
        earlier = known.get(name, known.get(name.partition("/")[2]))
        fits = earlier is not None and earlier.shape == tuple(shape)
        pieces.append(
            earlier.ravel() if earlier is not None and fits else vector[place : place + size]
        )
        new += [] if fits else [name]
        place += size
    return np.concatenate([*pieces, np.zeros(0)]).astype(np.float32), new


def _from_run(spec: str) -> dict[str, np.ndarray]:
    named = is_remote(spec) or spec.startswith(PREFIX)
    run = existing_run(spec) if named else RunFolder(spec)
    if not run.exists():
        raise UserError(
            f"model.init-from is {spec!r}; it must be a run folder with checkpoints, or a "
            ".keras file"
        )
    return newest_variables(run.checkpoints, ("ema", "params", AVERAGED_STATS, "stats"))


def _from_keras(spec: str) -> dict[str, np.ndarray]:
    if is_remote(spec):
        raise UserError(
            f"model.init-from is {spec}; on remote storage it can be a run folder only: copy the "
            ".keras file to this machine first"
        )
    if not Path(spec).is_file():
        raise UserError(f"model.init-from: there is no file {spec}")
    try:
        model = keras.models.load_model(
            spec,
            custom_objects={"FusedBatchNormalization": FusedBatchNormalization},
            compile=False,
            safe_mode=True,
        )
    except (ValueError, OSError, TypeError) as error:
        raise UserError(
            f"model.init-from: {spec} cannot be read: {str(error).splitlines()[0]}"
        ) from error
    return _by_name(model)


def _by_name(model: keras.Model) -> dict[str, np.ndarray]:
    return dict(
        zip(relative_names(model, model.weights), (v.numpy() for v in model.weights), strict=True)
    )
