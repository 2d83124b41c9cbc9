"""Which kernels an experiment uses: own where they can be used, else TensorFlow's.

It does not import TensorFlow.
"""

from __future__ import annotations

from typing import Literal

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.kernels.library import why_unavailable


def choose_kernels(experiment: Experiment, uses_gpus: bool) -> str:
    """Return own or tensorflow. Asking for own kernels that cannot be used is an error."""
    unfit, unavailable = _why_unfit(experiment, uses_gpus), why_unavailable()
    if experiment.kernels == "own" and (unfit or unavailable):
        what_to_do = f"{unfit}; give" if unfit else f"{unavailable}; or give"
        raise UserError(f"kernels is own, but {what_to_do} --kernels tensorflow")
    return "tensorflow" if unfit or unavailable or experiment.kernels == "tensorflow" else "own"


def why_not_own(experiment: Experiment, kernels: str) -> str:
    """Return why this machine lacks own kernels that the experiment could use.

    Empty if the experiment uses them, cannot use them, or does not want them.
    """
    if kernels == "own" or experiment.kernels == "tensorflow" or _why_unfit(experiment, False):
        return ""
    return why_unavailable()


def usable_kernels(trained_with: str) -> Literal["auto", "tensorflow"]:
    """Return the setting to use a trained model with: the kernels of its training, if they can be
    used where it is used now."""
    return "auto" if trained_with == "own" else "tensorflow"


def _why_unfit(experiment: Experiment, uses_gpus: bool) -> str:
    if uses_gpus:
        return "they are for CPUs, and there is a GPU"
    if experiment.precision != "float32":
        return f"they are for float32, and precision is {experiment.precision}"
    if experiment.threads_per_replica > 1:
        return "they use one thread, and threads-per-replica is more"
    return ""
