"""The rules that the fields of an experiment must meet, checked whenever one is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from paceline.errors import UserError
from paceline.experiment.groups import check_groups

if TYPE_CHECKING:
    from paceline.experiment.experiment import Data, Experiment, Model

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


MILLION = 10**6
MOST = 2**31 - 1
"""Larger counts are mistakes: they need memory or time without bound, or do not fit an int32."""


def _from(lowest: float, highest: float = MOST) -> Callable[[float], bool]:
    return lambda value: lowest <= value <= highest


def _is_share(value: float) -> bool:
    return 0 <= value < 1


_FIELDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("replicas", _from(1, 2**16), "1 to 65,536"),
    ("global_batch_size", _from(1, 2**24), "positive, at most 16,777,216"),
    ("threads_per_replica", _from(1, 4096), "1 to 4,096"),
    ("epochs", _from(-MOST), "a finite number, at most 2,147,483,647"),
    ("steps", _from(0, 10**12), "0 (use epochs) or more, at most 10^12"),
    ("evaluate_every", _from(0), "a number of epochs, 0 (only at the end) or more"),
    ("save_every", _from(0), "a number of epochs, 0 (only at the end) or more"),
    ("seed", _from(0, 2**32 - 1), "0 to 4,294,967,295"),
    ("sync.every", _from(1, MILLION), "1 step or more, at most 1,000,000"),
    ("early_stopping.patience", _from(0, MILLION), "0 (no early stopping) to 1,000,000"),
    ("early_stopping.min_delta", _from(0), "0 or more"),
    ("data.validation", _from(0), "0 or more"),
    ("data.train_size", _from(0, 10 * MILLION), "0 (the source's own) to 10,000,000"),
    ("data.test_size", _from(0, 10 * MILLION), "0 (the source's own) to 10,000,000"),
    ("data.padding", _from(0, 2**14), "0 or more, at most 16,384"),
    ("data.crop_size", _from(0, 2**14), "0 (the size that the images have) to 16,384"),
    ("data.sizes", lambda sizes: all(0 < n <= 2**14 for n in sizes), "numbers from 1 to 16,384"),
    ("data.brightness", _from(0), "0 or more"),
    ("data.contrast", lambda share: 0 <= share <= 1, "in [0, 1]"),
    ("data.cutout", _from(0, 2**14), "0 or more, at most 16,384"),
    ("data.mixup", _from(0), "0 or more"),
    ("data.cutmix", _from(0), "0 or more"),
    ("data.saturation", lambda share: 0 <= share <= 1, "in [0, 1]"),
    ("data.hue", lambda turn: 0 <= turn <= 0.5, "in [0, 0.5]"),
    ("data.rand_augment", _from(0, 20), "0 (no changes) to 20"),
    ("data.rand_magnitude", _from(0, 10), "0 to 10"),
    ("data.random_erasing", lambda share: 0 <= share <= 1, "in [0, 1]"),
    (
        "data.image_size",
        _from(0, 2**14),
        "0 (the size that the images have) or more, at most 16,384",
    ),
    ("data.crop_area_min", lambda share: 0 < share <= 1, "above 0 and at most 1"),
    ("data.std", lambda std: all(each > 0 for each in std), "numbers above 0"),
    ("optimizer.momentum", _is_share, "in [0, 1)"),
    ("optimizer.beta_2", _is_share, "in [0, 1)"),
    ("optimizer.ema", _is_share, "in [0, 1)"),
    ("optimizer.ema_every", _from(1), "1 step or more"),
    ("optimizer.ema_power", _from(0, 100), "0 (a constant decay) to 100"),
    ("optimizer.label_smoothing", _is_share, "in [0, 1)"),
    (
        "optimizer.class_weights",
        lambda weights: weights in ((), "balanced") or min(weights) >= 0 < max(weights),
        "balanced, or numbers from 0 of which one is above 0",
    ),
    ("optimizer.clip_norm", _from(0, math.inf), "0 (no limit) or more"),
    ("schedule.rate", _from(0, math.inf), "0 or more"),
    ("model.whitening", _from(0), "0 (none) or more images"),
    ("model.num_classes", _from(0, MILLION), "0 (the classes of the data) to 1,000,000"),
    ("model.depth", _from(1, 4096), "at most 4,096"),
    ("model.width", _from(0, 2**14), "0 (the layout's own) or more, at most 16,384"),
)


def check_rules(experiment: Experiment) -> None:
    """Raise a UserError for the first rule that the experiment breaks."""
    for name, fine, allowed in _FIELDS:
        value = attrgetter(name)(experiment)
        if not fine(value):
            raise UserError(f"{name.replace('_', '-')} is {value}; it must be {allowed}")
    _check_training(experiment)
    _check_data(experiment.data)
    check_groups(experiment.optimizer)
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
    if e.early_stopping.patience and not (e.data.validation and e.evaluate_every):
        raise UserError(
            f"early-stopping.patience is {e.early_stopping.patience}, but data.validation is "
            f"{e.data.validation} and evaluate-every {e.evaluate_every:g}; early stopping needs a "
            "validation split and evaluations: give both above 0"
        )
    if e.precision == "float16" and e.sync.method != "gradients":
        raise UserError(
            f"precision float16 is for sync.method gradients, not {e.sync.method}: all replicas "
            "share one loss scale; use bfloat16 or float32"
        )
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


def _check_data(data: Data) -> None:
    epochs = data.size_epochs
    if len(epochs) != len(data.sizes) or list(epochs) != sorted(
        {e for e in epochs if 0 < e < MOST}
    ):
        raise UserError(
            f"data.sizes {data.sizes} and data.size-epochs {epochs} must have the same length, and "
            "epochs must rise and be above 0"
        )
    if data.mean == "auto" and not data.scaling.startswith("mean"):
        raise UserError(
            f"data.mean is auto with data.scaling {data.scaling}, which takes no means; use "
            "mean_std or mean"
        )
    if data.crop_size and data.image_size:
        raise UserError(
            f"data.crop-size is {data.crop_size} and data.image-size {data.image_size}; give one "
            "of them: crop-size for images of a fixed size, image-size for others"
        )


def _check_resnet(model: Model) -> None:
    depth = model.depth
    if model.activation != "relu" and model.leakiness:
        raise UserError(
            f"model.leakiness is {model.leakiness} with model.activation {model.activation}; it is "
            "for relu"
        )
    if model.zero_gamma and not model.norm_scale:
        raise UserError("model.zero-gamma needs the scale that --no-model.norm-scale leaves out")
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
