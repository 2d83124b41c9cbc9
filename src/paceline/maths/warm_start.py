"""A state that starts from stored weights; what does not fit (the head) stays new."""

from __future__ import annotations

import math

import numpy as np

from paceline.errors import UserError
from paceline.maths.state import Part, State, evaluated_vectors
from paceline.maths.template import Template

Weights = dict[str, np.ndarray]
"""The arrays of a model by the names of their variables."""


def start_from(
    spec: str, stored: Weights, template: Template, state: State
) -> tuple[State, list[str]]:
    """Return the state with every stored array whose name and shape fit, and the names of the rest.

    `spec` says where the arrays are from, for the error if most do not fit.
    """
    params, new_params = _fill(template.params, state.vectors["params"], stored)
    stats, new_stats = _fill(template.stats, state.vectors["stats"], stored)
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


def _fill(part: Part, vector: np.ndarray, stored: Weights) -> tuple[np.ndarray, list[str]]:
    filled, new, start = vector.astype(np.float32), list[str](), 0
    for name, shape in part:
        stop = start + math.prod(shape)
        # a Sequential model that was built as one puts its own name first; loaded from a file, it
        # does not
        array = stored.get(name, stored.get(name.partition("/")[2]))
        if array is not None and array.shape == tuple(shape):
            filled[start:stop] = array.ravel()
        else:
            new.append(name)
        start = stop
    return filled, new
