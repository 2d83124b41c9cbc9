"""Which kernels an experiment uses: Paceline's (`own`) where possible, else TensorFlow's.

This is what the core imports of this folder. Importing it does not import TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.kernels.library import library_name, why_unavailable

if TYPE_CHECKING:
    import keras


def choose_kernels(experiment: Experiment, uses_gpus: bool) -> str:
    """Return own or tensorflow. Raise UserError if own is asked for and cannot be used."""
    unfit, unavailable = _why_unfit(experiment, uses_gpus), why_unavailable()
    if experiment.kernels == "own" and (unfit or unavailable):
        what_to_do = f"{unfit}; give" if unfit else f"{unavailable}; or give"
        raise UserError(f"kernels is own, but {what_to_do} --kernels tensorflow")
    return "tensorflow" if unfit or unavailable or experiment.kernels == "tensorflow" else "own"


def accelerated(experiment: Experiment, model: keras.Model, uses_gpus: bool) -> keras.Model | None:
    """Return the model on Paceline's kernels if the experiment uses them, else None."""
    if choose_kernels(experiment, uses_gpus) != "own":
        return None
    from paceline.kernels.rewrite import accelerate

    return accelerate(model)


def exact_name(kernels: str) -> str:
    """Return the name of kernels that compute the same bits on one kind of CPU."""
    return f"own ({library_name()})" if kernels == "own" else kernels


def why_not_own(experiment: Experiment, kernels: str) -> str:
    """Return why this machine lacks Paceline's kernels that the experiment could use.

    Empty if the experiment uses them, cannot use them, or does not want them.
    """
    if kernels == "own" or experiment.kernels == "tensorflow" or _why_unfit(experiment, False):
        return ""
    return why_unavailable()


def usable_kernels(trained_with: str) -> Literal["auto", "tensorflow"]:
    """Return the setting for a trained model: the kernels of its training, if available here."""
    return "auto" if trained_with == "own" else "tensorflow"


def _why_unfit(experiment: Experiment, uses_gpus: bool) -> str:
    if uses_gpus:
        return "they are for CPUs, and there is a GPU"
    if experiment.precision != "float32":
        return f"they are for float32, and precision is {experiment.precision}"
    if experiment.threads_per_replica > 1:
        return "they use one thread, and threads-per-replica is more"
    return ""
