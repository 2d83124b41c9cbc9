"""Names of models of `keras.applications` in an experiment: keras:ResNet50, or with a file of
weights keras:ResNet50:FILE. Pure, no Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.experiment.experiment import Model

PREFIX = "keras:"


def is_application(spec: str) -> bool:
    return spec.startswith(PREFIX)


def parse_application(spec: str) -> tuple[str, str]:
    """Return the name of the application and the file of its weights, which may be empty."""
    name, _, file = spec.removeprefix(PREFIX).partition(":")
    return name, file


def application_of(model: Model) -> str:
    """Return the name of the application that the model is; empty if it is another model.

    Whoever starts from the weights of an application and names no model means the application.
    """
    spec = model.build or model.init_from
    return parse_application(spec)[0] if is_application(spec) else ""
