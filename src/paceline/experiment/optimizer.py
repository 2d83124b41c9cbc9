"""How weights are changed: loss, update rule, learning rate, average of the weights, what replicas
share, and early stopping. Part of the experiment."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from paceline.errors import UserError
from paceline.experiment.fields import Json, Range

PartOfOne = Annotated[float, Range(0, 1, excludes_highest=True)]


@dataclass(frozen=True)
class Group:
    """Settings for weights whose names match `pattern`. If several groups match, the first is used.

    None uses the optimizer's setting.
    """

    pattern: str
    """A name of weights with * and ?, such as */kernel."""
    rate: Annotated[float, Range(0, 10**9)] = 1.0
    """Multiplies the learning rate; 0 never changes the weights."""
    decay: Annotated[float | None, Range(0, 10**9)] = None
    """Weight decay."""
    momentum: Annotated[float | None, Range(0, 1, excludes_highest=True)] = None
    """Momentum of sgd and muon."""
    rule: Literal["", "muon"] = ""
    """muon makes the update of each filter tensor orthogonal and scales the tensor."""
    until: Annotated[float, Range(0, 1)] = 1.0
    """Share of the steps that train these weights; the curve of their rate ends there."""

    def __str__(self) -> str:
        """Return the group as the command line takes it."""
        given = [item.name for item in fields(self)[1:] if getattr(self, item.name) != item.default]
        return " ".join([self.pattern, *(f"{name}={getattr(self, name)}" for name in given)])

    @property
    def is_frozen(self) -> bool:
        """Whether these weights are frozen from the start."""
        return self.rate == 0 or self.until == 0


@dataclass(frozen=True)
class Optimizer:
    """The optimizer: how the mean gradient changes the weights."""

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
    """Weight decay. It is added to the gradient; with adamw, it is decoupled."""
    decay: Literal["kernels", "kernels-and-bias", "all"] = "kernels"
    """Which weights decay: only kernels, kernels and biases (except BatchNorm's), or all."""
    clip_norm: Annotated[float, Range(0, math.inf)] = 0.0
    """Clip the mean gradient to this norm. 0 disables."""
    groups: tuple[Group, ...] = ()
    """Settings for some weights, each as 'PATTERN KEY=VALUE ...', such as '*/kernel rule=muon
    rate=0.5'. The keys are rate, decay, momentum, rule and until. See docs/training-options.md."""


@dataclass(frozen=True)
class Loss:
    """The loss: cross-entropy, with these options."""

    label_smoothing: PartOfOne = 0.0
    """Label smoothing: share of each training label that is spread over all classes. 0 disables."""
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
    """Epochs at which the schedule `steps` switches to the next factor."""
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
    """How replicas are averaged, and how often."""

    method: Literal["gradients", "weights", "async"] = "gradients"
    """gradients: every step applies the mean gradient. weights: each replica trains alone for
    `every` steps, then the complete state is averaged. async: each replica's gradient is applied
    when it arrives, with 1/replicas of the rate (parameter servers only)."""
    every: Annotated[int, Range(1, 10**6)] = 10
    """Steps between two averages (method weights)."""
    max_staleness: Annotated[int, Range(-1)] = -1
    """Maximum number of updates a gradient may lag behind (method async). -1: unlimited."""


@dataclass(frozen=True)
class EarlyStopping:
    """Early stopping: end the training when the validation split no longer improves."""

    patience: Annotated[int, Range(0, 10**6)] = 0
    """Stop after this many evaluations without an improvement. This needs a validation split
    (data.validation). 0 disables."""
    metric: Literal["accuracy", "loss"] = "accuracy"
    """What must improve on the validation split."""
    min_delta: Annotated[float, Range(0)] = 0.0
    """Smallest change that is an improvement."""


def groups_of(optimizer: Optimizer) -> tuple[Group, ...]:
    """Return the groups in their order, and last the group of all other weights."""
    return (*optimizer.groups, Group("*"))


def find_group(groups: tuple[Group, ...], name: str) -> int:
    """Return the number of the first group that a weight's name fits."""
    return next(i for i, group in enumerate(groups) if fnmatchcase(name, group.pattern))


def check_groups(optimizer: Optimizer) -> None:
    """Raise a UserError if a group does not fit the optimizer."""
    for group in optimizer.groups:
        if not group.pattern:
            raise UserError("optimizer.groups: each must begin with a pattern, such as */kernel")
        if group.momentum is not None and optimizer.name != "sgd" and group.rule != "muon":
            raise UserError(
                f"optimizer.groups: {str(group)!r} has a momentum; groups of {optimizer.name} "
                "cannot have their own"
            )


def check_patterns(optimizer: Optimizer, names: Iterable[str]) -> None:
    """Raise a UserError for a group that no weight belongs to."""
    groups, known = groups_of(optimizer), list(names)
    used = {find_group(groups, name) for name in known}
    for number, group in enumerate(optimizer.groups):
        if number not in used:
            raise UserError(
                f"optimizer.groups: no weight belongs to {str(group)!r}; the names are "
                f"{', '.join(known[:6])}{' ...' if len(known) > 6 else ''}"
            )


def parse_group(text: str) -> Group:
    """Return the group that a text such as '*/kernel rule=muon rate=0.5' describes."""
    pattern, *settings = text.split() or [""]
    given: Json = dict(setting.partition("=")[::2] for setting in settings)
    try:
        return Group(
            pattern, rule=given.pop("rule", ""), **{key: float(given[key]) for key in given}
        )
    except (TypeError, ValueError):
        raise UserError(
            f"optimizer.groups: {text!r} is not 'PATTERN KEY=VALUE ...'; the keys are rate, decay, "
            "momentum and until, each with a number, and rule"
        ) from None
