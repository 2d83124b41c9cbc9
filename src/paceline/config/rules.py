"""The rules that the fields of an experiment must meet, checked whenever one is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from paceline.errors import UserError

if TYPE_CHECKING:
    from paceline.config.experiment import Experiment, Model

Block = Literal["basic", "bottleneck"]

IMAGENET_STAGES: dict[int, tuple[Block, tuple[int, ...]]] = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
    200: ("bottleneck", (3, 24, 36, 3)),
}
"""By depth: the kind of block, and the number of blocks in each stage (He et al. 2015, table 1; 200
from He et al. 2016)."""


def _at_least(lowest: float) -> Callable[[float], bool]:
    return lambda value: value >= lowest


def _is_share(value: float) -> bool:
    return 0 <= value < 1


_FIELDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("replicas", lambda n: n >= 1 and n & (n - 1) == 0, "a power of two: 1, 2, 4, 8 ..."),
    ("global_batch_size", _at_least(1), "positive"),
    ("threads_per_replica", _at_least(1), "1 or more"),
    ("epochs", math.isfinite, "a finite number"),
    ("steps", _at_least(0), "0 (use epochs) or more"),
    ("evaluate_every", _at_least(0), "a number of epochs, 0 (only at the end) or more"),
    ("save_every", _at_least(0), "a number of epochs, 0 (only at the end) or more"),
    ("sync.every", _at_least(1), "1 step or more"),
    ("data.validation", _at_least(0), "0 or more"),
    ("data.padding", _at_least(0), "0 or more"),
    ("data.cutout", _at_least(0), "0 or more"),
    ("data.mixup", _at_least(0), "0 or more"),
    ("data.image_size", _at_least(0), "0 (the size that the images have) or more"),
    ("data.crop_area_min", lambda share: 0 < share <= 1, "above 0 and at most 1"),
    ("data.std", lambda std: all(each > 0 for each in std), "numbers above 0"),
    ("optimizer.momentum", _is_share, "in [0, 1)"),
    ("optimizer.beta_2", _is_share, "in [0, 1)"),
    ("optimizer.ema", _is_share, "in [0, 1)"),
    ("optimizer.label_smoothing", _is_share, "in [0, 1)"),
    ("optimizer.clip_norm", _at_least(0), "0 (no limit) or more"),
    ("schedule.rate", _at_least(0), "0 or more"),
    ("model.num_classes", _at_least(0), "0 (the number of classes of the data) or more"),
)


def check_rules(experiment: Experiment) -> None:
    """Raise a UserError for the first rule that the experiment breaks."""
    for name, fine, allowed in _FIELDS:
        value = attrgetter(name)(experiment)
        if not fine(value):
            raise UserError(f"{name.replace('_', '-')} is {value}; it must be {allowed}")
    _check_training(experiment)
    if not experiment.model.build:
        _check_resnet(experiment.model)


def _check_training(e: Experiment) -> None:
    """Check the rules that concern several fields."""
    if e.global_batch_size % e.replicas:
        fitting = max(1, e.global_batch_size // e.replicas) * e.replicas
        raise UserError(
            f"global-batch-size {e.global_batch_size} cannot be divided among {e.replicas} "
            f"replicas; use {fitting} or other --replicas"
        )
    if e.epochs <= 0 and e.steps <= 0:
        raise UserError("nothing to train: give --epochs or --steps above 0")
    staleness, method = e.sync.max_staleness, e.sync.method
    if staleness != -1 and (staleness < 0 or method != "async"):
        raise UserError(
            f"sync.max-staleness is {staleness} with sync.method {method}; it must be -1 (no "
            "limit), or with sync.method async a number of gradients, 0 or more"
        )
    boundaries, factors = e.schedule.boundaries, e.schedule.factors
    if len(boundaries) != len(factors) or list(boundaries) != sorted(boundaries):
        raise UserError(
            f"schedule.boundaries {boundaries} and schedule.factors {factors} must have the same "
            "length, and boundaries must rise"
        )


def _check_resnet(model: Model) -> None:
    depth = model.depth
    if model.width < 0:
        raise UserError(f"model.width is {model.width}; it must be 0 (the layout's own) or more")
    if model.zero_gamma and model.version == "v2":
        raise UserError(
            "model.zero-gamma is for v1 and v1.5; blocks of v2 do not end in a BatchNorm"
        )
    if model.layout == "imagenet" and depth not in IMAGENET_STAGES:
        nearest = min(IMAGENET_STAGES, key=lambda known: abs(known - depth))
        raise UserError(
            f"model.depth is {depth}; the imagenet layout has "
            f"{', '.join(map(str, IMAGENET_STAGES))} layers: {nearest} is nearest"
        )
    unit = 6 if model.block == "basic" else 9
    if model.layout == "cifar" and (depth < unit + 2 or (depth - 2) % unit):
        low = max(1, (depth - 2) // unit) * unit + 2
        other = "; --model.layout imagenet has this depth" if depth in IMAGENET_STAGES else ""
        raise UserError(
            f"model.depth is {depth}; a {model.block} CIFAR ResNet has {unit}n+2 layers: "
            f"{low} or {low + unit} is nearest{other}"
        )
