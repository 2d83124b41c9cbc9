"""Which kernels an experiment uses: own where they can be used, else TensorFlow's.

It does not import TensorFlow.
"""

from __future__ import annotations

from typing import Literal, cast

from paceline.config.experiment import Experiment
from paceline.errors import UserError
from paceline.kernels.library import why_unavailable

Kernels = Literal["own", "tensorflow"]


def choose_kernels(experiment: Experiment, uses_gpus: bool) -> str:
    """Return own or tensorflow. Asking for own kernels that cannot be used is an error."""
    reason = _why_unfit(experiment, uses_gpus) or why_unavailable()
    if experiment.kernels == "own" and reason:
        raise UserError(f"kernels is own, but {reason}; give --kernels tensorflow")
    return "tensorflow" if reason or experiment.kernels == "tensorflow" else "own"


def why_not_own(experiment: Experiment, kernels: str) -> str:
    """Return why this machine lacks own kernels that the experiment could use.

    Empty if the experiment uses them, cannot use them, or does not want them.
    """
    if kernels == "own" or experiment.kernels == "tensorflow" or _why_unfit(experiment, False):
        return ""
    return why_unavailable()


def usable_kernels(trained_with: str) -> Kernels:
    """Return the kernels to use a trained model with: those of its training, if they are here."""
    return "tensorflow" if why_unavailable() else cast(Kernels, trained_with)


def _why_unfit(experiment: Experiment, uses_gpus: bool) -> str:
    if uses_gpus:
        return "they are for CPUs, and there is a GPU"
    if experiment.precision != "float32":
        return f"they are for float32, and precision is {experiment.precision}"
    if experiment.threads_per_replica > 1:
        return "they use one thread, and threads-per-replica is more"
    return ""
