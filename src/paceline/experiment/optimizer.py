"""How weights are changed: loss, update rule, learning rate, average of the weights, what replicas
share, and early stopping. Part of the experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from paceline.experiment.fields import Range
from paceline.experiment.groups import Group

PartOfOne = Annotated[float, Range(0, 1, excludes_highest=True)]


@dataclass(frozen=True)
class Optimizer:
    """How the mean gradient changes the weights."""

    name: Literal["sgd", "adamw"] = "sgd"
    """Update rule."""
    momentum: PartOfOne = 0.9
    """Momentum of sgd; beta 1 of adamw."""
    nesterov: bool = False
    """Use Nesterov momentum (sgd)."""
    beta_2: PartOfOne = 0.999
    """Decay of the moving mean of squared gradients (adamw)."""
    epsilon: float = 1e-8
    """Epsilon added to the denominator (adamw)."""
    weight_decay: float = 1e-4
    """Weight decay; added to the gradient, in adamw decoupled from it."""
    decay: Literal["kernels", "kernels-and-bias", "all"] = "kernels"
    """Weights that decay: kernels, kernels and biases (not those of BatchNorm), or all."""
    clip_norm: Annotated[float, Range(0, math.inf)] = 0.0
    """Clip the mean gradient to this norm. 0 disables."""
    groups: tuple[Group, ...] = ()
    """Settings for some weights, each as 'PATTERN KEY=VALUE ...', such as '*/kernel rule=muon
    rate=0.5'. The keys are rate, decay, momentum, rule and until. See docs/short-trainings.md."""


@dataclass(frozen=True)
class Loss:
    """What training minimizes: the cross-entropy, with these changes."""

    label_smoothing: PartOfOne = 0.0
    """Share of each training label that is spread over all classes. 0 disables."""
    class_weights: Annotated[tuple[float, ...] | Literal["balanced"], Range(0)] = ()
    """Per-class loss weights, in class order, or balanced: computed from the training data, so that
    all classes have the same total weight. Default: all are 1."""


@dataclass(frozen=True)
class Average:
    """A moving average (EMA) of the whole model, which is then evaluated and exported."""

    decay: PartOfOne = 0.0
    """Decay of the average. 0 disables."""
    every: Annotated[int, Range(1)] = 1
    """Steps between two updates of the average."""
    power: Annotated[float, Range(0, 100)] = 0.0
    """Ramp the decay up: decay * progress**power. 0 uses a constant decay."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step."""

    name: Literal["constant", "steps", "cosine", "one-cycle"] = "steps"
    """Curve of the learning rate after the warm-up."""
    rate: Annotated[float, Range(0, math.inf)] = 0.1
    """Highest learning rate."""
    boundaries: tuple[float, ...] = ()
    """Epochs at which the schedule `steps` changes to the next factor."""
    factors: tuple[float, ...] = ()
    """Learning-rate multipliers after each boundary (schedule `steps`)."""
    warmup: Annotated[float | str, Range(0)] = 0.0
    """Warm-up length in epochs, or as a share of the training, such as 1/5. For one-cycle, it is
    the rising phase. 0 disables."""
    warmup_from: float = 0.0
    """Rate at which the warm-up starts, as a share of the highest rate."""
    final: float = 0.0
    """Rate at which cosine and one-cycle end, as a share of the highest rate."""
    scale_to_batch: Annotated[int, Range(0)] = 0
    """Reference batch size: the rate is multiplied by global_batch_size / this. 0 disables."""


@dataclass(frozen=True)
class Sync:
    """What replicas share, and how often."""

    method: Literal["gradients", "weights", "async"] = "gradients"
    """gradients: every step applies the mean gradient. weights: each replica trains alone for
    `every` steps, then all state is averaged. async: each replica's gradient is applied when it
    arrives, with 1/replicas of the rate (parameter servers only)."""
    every: Annotated[int, Range(1, 10**6)] = 10
    """Steps between two averages (method weights)."""
    max_staleness: Annotated[int, Range(-1)] = -1
    """Maximum number of updates a gradient may lag behind (method async). -1: unlimited."""


@dataclass(frozen=True)
class EarlyStopping:
    """Ending the training when the validation split no longer improves."""

    patience: Annotated[int, Range(0, 10**6)] = 0
    """Number of evaluations without an improvement after which training ends as finished. It needs
    a validation split (data.validation). 0 disables."""
    metric: Literal["accuracy", "loss"] = "accuracy"
    """What must improve on the validation split."""
    min_delta: Annotated[float, Range(0)] = 0.0
    """Smallest change that counts as an improvement."""

    def ends(self, values: Sequence[float]) -> bool:
        """Return whether training ends after these values of the metric, one per evaluation."""
        if not self.patience:
            return False
        sign = 1 if self.metric == "accuracy" else -1
        best, waited = float("-inf"), 0
        for value in values:
            if sign * value > best + self.min_delta:  # NaN is not an improvement
                best, waited = sign * value, 0
            else:
                waited += 1
        return waited >= self.patience
