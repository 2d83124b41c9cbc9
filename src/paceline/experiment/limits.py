"""The rules that several fields of an experiment must meet together, checked whenever one is made.

The limits of a single field are at the field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.experiment.augmentation import Augmentation, Scaling
from paceline.experiment.data import Records
from paceline.experiment.fields import MOST, check_fields
from paceline.experiment.groups import check_groups
from paceline.experiment.model import IMAGENET_STAGES, Model

if TYPE_CHECKING:
    from paceline.experiment.experiment import Experiment


def check_rules(experiment: Experiment) -> None:
    """Raise a UserError for the first rule that the experiment breaks."""
    _check_length(experiment)
    _check_sync(experiment)
    _check_schedule(experiment)
    _check_images(experiment)
    check_records(experiment.records)
    _check_scaling(experiment.scaling)
    _check_weights(experiment)
    check_groups(experiment.optimizer)
    if not experiment.model.build:
        _check_resnet(experiment.model)


def _check_length(e: Experiment) -> None:
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


def _check_sync(e: Experiment) -> None:
    staleness, method = e.sync.max_staleness, e.sync.method
    if e.precision == "float16" and method != "gradients":
        raise UserError(
            f"precision float16 is for sync.method gradients, not {method}: all replicas share one "
            "loss scale; use bfloat16 or float32"
        )
    if staleness != -1 and (staleness < 0 or method != "async"):
        raise UserError(
            f"sync.max-staleness is {staleness} with sync.method {method}; it must be -1 (no "
            "limit), or with sync.method async a number of gradients, 0 or more"
        )


def _check_schedule(e: Experiment) -> None:
    boundaries, factors = e.schedule.boundaries, e.schedule.factors
    if len(boundaries) != len(factors) or list(boundaries) != sorted(boundaries):
        raise UserError(
            f"schedule.boundaries {boundaries} and schedule.factors {factors} must have the same "
            "length, and boundaries must rise"
        )


def _check_images(e: Experiment) -> None:
    augment = e.augment
    if not _rise(augment):
        raise UserError(
            f"augment.sizes {augment.sizes} and augment.size-epochs {augment.size_epochs} must "
            "have the same length, and epochs must rise and be above 0"
        )
    if augment.crop_size and e.data.image_size:
        raise UserError(
            f"augment.crop-size is {augment.crop_size} and data.image-size {e.data.image_size}; "
            "give one of them: crop-size for images of a fixed size, image-size for others"
        )


def _rise(augment: Augmentation) -> bool:
    epochs = augment.size_epochs
    rising = sorted({epoch for epoch in epochs if 0 < epoch < MOST})
    return len(epochs) == len(augment.sizes) and list(epochs) == rising


def check_records(records: Records) -> None:
    """Raise a UserError if TFRecords cannot be read so."""
    check_fields(records, "records.")
    if len(records.raw_shape) not in (0, 3):
        raise UserError(
            f"records.raw-shape is {records.raw_shape}; give height, width and channels: 32 32 3"
        )


def _check_scaling(scaling: Scaling) -> None:
    if scaling.mean == "auto" and not scaling.method.startswith("mean"):
        raise UserError(
            f"scaling.mean is auto with scaling.method {scaling.method}, which takes no means; use "
            "mean_std or mean"
        )


def _check_weights(e: Experiment) -> None:
    weights = e.loss.class_weights
    if isinstance(weights, tuple) and weights and max(weights) == 0:
        raise UserError(f"loss.class-weights is {weights}; at least one number must be above 0")


def _check_resnet(model: Model) -> None:
    if model.activation != "relu" and model.leakiness:
        raise UserError(
            f"model.leakiness is {model.leakiness} with model.activation {model.activation}; "
            "leakiness only works with model.activation relu"
        )
    if model.zero_gamma and not model.norm_scale:
        raise UserError("model.zero-gamma cannot be combined with --no-model.norm-scale")
    if model.zero_gamma and model.version == "v2":
        raise UserError(
            "model.zero-gamma is for v1 and v1.5; blocks of v2 do not end in a BatchNorm"
        )
    _check_depth(model)


def _check_depth(model: Model) -> None:
    depth = model.depth
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
