"""How weights are changed: the update rule and the learning rate. Part of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Optimizer:
    """How the mean gradient changes the weights."""

    name: Literal["sgd", "rmsprop", "adamw"] = "sgd"
    """Update rule."""
    momentum: float = 0.9
    """Momentum of sgd and rmsprop; beta 1 of adamw."""
    nesterov: bool = False
    """Use Nesterov momentum (sgd)."""
    beta_2: float = 0.999
    """Decay of the moving mean of squared gradients (rmsprop, adamw)."""
    epsilon: float = 1e-8
    """Number added to the root of that mean (rmsprop, adamw)."""
    weight_decay: float = 1e-4
    """Coefficient of weight decay; added to the gradient, in adamw decoupled from it."""
    decay: Literal["kernels", "kernels-and-bias", "all"] = "kernels"
    """Weights that decay: kernels only, kernels and biases (not those of BatchNorm), or all."""
    clip_norm: float = 0.0
    """Largest norm of the mean gradient; a longer one is scaled down to it. 0 is no limit."""
    label_smoothing: float = 0.0
    """Share of each training label that is spread over all classes; 0 is none."""
    class_weights: tuple[float, ...] | Literal["balanced"] = ()
    """Factor of the loss of each class's training examples, in the order of the classes. balanced:
    computed from the training data, so that all classes count alike. Empty: all are 1."""
    ema: float = 0.0
    """Decay of a moving average of the weights and of BatchNorm's statistics, which is then
    evaluated and exported; 0 keeps none."""
    ema_every: int = 1
    """Steps between two updates of that average."""
    ema_power: float = 0.0
    """If above 0, the decay rises with the steps: it is ema x (share of the steps done) ** power,
    so that the average follows the weights closely at first."""
    groups: tuple[str, ...] = ()
    """Settings of some weights, as 'PATTERN KEY=VALUE ...'; of several groups that fit a weight,
    the first counts. PATTERN is a name of weights with * and ?, such as '*/kernel'. Keys: rate, a
    factor of the learning rate (0 never changes the weights); decay, the weight decay; momentum
    (sgd, muon); rule=muon, which makes the update of each filter tensor orthogonal and scales the
    tensor; until, the share of the steps after which the weights stay as they are, and at which the
    curve of the learning rate ends for them."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step."""

    name: Literal["constant", "steps", "cosine", "one-cycle"] = "steps"
    """Curve of the learning rate after the warm-up."""
    rate: float = 0.1
    """Highest learning rate."""
    boundaries: tuple[float, ...] = ()
    """Epochs at which the curve `steps` changes to the next factor."""
    factors: tuple[float, ...] = ()
    """Factors of the highest rate after each boundary (curve `steps`)."""
    warmup: float = 0.0
    """Epochs of linear increase at the start; 0 has none. In one-cycle, the rising part."""
    warmup_from: float = 0.0
    """Rate at which the warm-up starts, as a share of the highest rate."""
    final: float = 0.0
    """Rate at which cosine and one-cycle end, as a share of the highest rate."""
    scale_to_batch: int = 0
    """Global batch size for which the rate is given; it is scaled linearly with the actual one. 0
    does not scale."""
