"""The model of a run with the weights of a checkpoint, loaded from the run folder alone.

It needs config.json and one checkpoint, not the data. `predict` and `export` use it. TensorFlow is
imported by the functions only, after its settings are made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.engines import devices
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.job import Job
from paceline.maths.state import State, evaluated_vectors
from paceline.results.in_worker import check_trust
from paceline.run_folder.code_copies import with_copies
from paceline.run_folder.finding import existing_run
from paceline.run_folder.folder import RunFolder

if TYPE_CHECKING:
    import keras

    from paceline.data.source import Shape
    from paceline.maths.template import Template


@dataclass(frozen=True)
class TrainedModel:
    """A model and the state of a checkpoint."""

    experiment: Experiment
    classes: tuple[str, ...]
    """A name for each output."""
    stored_shape: Shape | None
    """Shape of the images in the data source; None if they are encoded, in any size."""
    image_shape: Shape
    """Shape of the model's input."""
    template: Template
    state: State

    @property
    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the parameters and the statistics that evaluation takes."""
        params, stats = evaluated_vectors(self.state.vectors)
        return self.state.vectors[params], self.state.vectors[stats]

    @property
    def gives_logits(self) -> bool:
        return self.experiment.model.outputs == "logits"

    def with_weights(self) -> keras.Model:
        """Return the Keras model with these weights."""
        self.template.assign(*self.weights)
        return self.template.model


def configure_inference(experiment: Experiment) -> int:
    """Configure this process to use a trained model; return how many batches to compute at a time.
    The settings are those of training. If TensorFlow was used here before, its settings stay."""
    if "tensorflow" not in sys.modules:
        devices.import_tensorflow(Job(experiment), hide=())  # it may be the process of a user
    lanes = max(1, len(os.sched_getaffinity(0)) // experiment.threads_per_replica)
    with suppress(RuntimeError):
        devices.set_threads_and_memory(experiment.threads_per_replica, lanes)
    return 1 if devices.num_gpus() else lanes


def usable_experiment(run: RunFolder) -> Experiment:
    """Return a run's experiment for this machine: with the copies of the user's code, and with
    the kernels of the training if they are available."""
    experiment = with_copies(run.experiment(), run.path)
    return replace(experiment, kernels="auto" if run.kernels() == "own" else "tensorflow")


def load_trained_model(
    run: RunFolder, checkpoint: str = "best", float32: bool = False
) -> TrainedModel:
    """Load a run's model and a checkpoint, in the precision of the training or in float32."""
    experiment, facts = usable_experiment(run), run.data_facts()
    if float32:
        experiment = replace(experiment, precision="float32")
    names, stored = facts.get("classes"), facts.get("image_shape")
    if not names:
        raise UserError(
            f"{run.path} is damaged: its config.json names no classes; restore it from a copy"
        )
    if stored and stored[2] not in (1, 3):
        raise UserError(
            f"the run's images have {stored[2]} channels; "
            "image files can be predicted by models with 1 or 3 channels"
        )
    configure_inference(experiment)
    from paceline.build import build_network
    from paceline.data.images import model_shape
    from paceline.data.statistics import with_stored_means
    from paceline.maths.replica import build_layout
    from paceline.run_folder.checkpoints import Checkpoints, identity_of

    experiment = replace(experiment, scaling=with_stored_means(experiment.scaling, facts))
    stored = tuple(stored) if stored else None
    shape, num_classes = model_shape(experiment, stored), experiment.model.num_classes or len(names)
    template = build_network(experiment, shape, num_classes, bool(devices.num_gpus()))
    layout = build_layout(run.experiment(), template)  # of the training's precision
    state = Checkpoints(run.checkpoints, layout, identity=identity_of(run)).choose(checkpoint)
    classes = output_names(names, num_classes)
    return TrainedModel(experiment, classes, stored, shape, template, state)


def load(run: str | Path, checkpoint: str = "best", trust_code: bool = False) -> keras.Model:
    """Load the Keras model of a run with its weights into this process.

    The model takes scaled images. `paceline.load_predictor` also prepares images.

    Args:
        run: Folder of the run, its name in runs/, zoo:NAME, or the Result of `train`.
        checkpoint: "best", "last" or a step.
        trust_code: Whether to run your own code that the run names. Not needed for a Result.

    Returns:
        The Keras model.

    Example:
        paceline.load("runs/smoke-1a2b3c4d").summary()
    """
    own = getattr(run, "run_dir", None)  # of a Result: its code is the caller's
    folder = existing_run(own or run)
    check_trust(folder, "load", trust_code or own is not None)
    return load_trained_model(folder, checkpoint).with_weights()


def output_names(classes: Sequence[str], num_outputs: int) -> tuple[str, ...]:
    """Return the classes of the data, and numbers for outputs beyond them."""
    return (*classes, *(str(number) for number in range(len(classes), num_outputs)))


def to_probabilities(outputs: np.ndarray, are_logits: bool) -> np.ndarray:
    """Return float32 probabilities; a row's values do not depend on the other rows."""
    if not are_logits:
        return outputs
    powers = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)
