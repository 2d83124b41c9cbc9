"""The experiment: everything that decides the numbers, as frozen, checked data that JSON can hold.

It knows nothing of places, run folders or TensorFlow. The names of fields are the flags of the
command line; the docstring below a field is the help text of its flag. The limits of a single field
are at the field, and the rules that several fields must meet together are here.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from paceline.errors import UserError
from paceline.experiment.data import Augmentation, Data, Records, Scaling
from paceline.experiment.fields import Json, Range, check_fields, diff, from_json, to_json
from paceline.experiment.model import IMAGENET_STAGES, Model
from paceline.experiment.optimizer import (
    Average,
    EarlyStopping,
    Group,
    Loss,
    Optimizer,
    Schedule,
    Sync,
    check_groups,
)

__all__ = ["Augmentation", "Average", "Data", "EarlyStopping", "Experiment", "Group", "Loss"]
__all__ += ["Model", "Optimizer", "Records", "Scaling", "Schedule", "Sync"]

MOVABLE = ("data.dir", "data.test", "kernels")
"""Fields that may change when a run continues elsewhere."""


@dataclass(frozen=True)
class Experiment:
    """Everything that determines the numbers, and so the bits of the result."""

    data: Data = field(default_factory=Data)
    records: Records = field(default_factory=Records)
    augment: Augmentation = field(default_factory=Augmentation)
    scaling: Scaling = field(default_factory=Scaling)
    model: Model = field(default_factory=Model)
    loss: Loss = field(default_factory=Loss)
    optimizer: Optimizer = field(default_factory=Optimizer)
    average: Average = field(default_factory=Average)
    schedule: Schedule = field(default_factory=Schedule)
    sync: Sync = field(default_factory=Sync)
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping)
    epochs: Annotated[float, Range(0)] = 1.0
    """Passes over the training data."""
    steps: Annotated[int, Range(0, 10**12)] = 0
    """Total number of steps, instead of epochs. 0 uses epochs."""
    global_batch_size: Annotated[int, Range(1, 2**24)] = 128
    """Examples in one step, over all replicas."""
    replicas: Annotated[int, Range(1, 2**16)] = 2
    """Number of slices of the global batch, each with its own BatchNorm statistics. Must be at
    least the number of workers; one per core or GPU is fastest, more are computed in turns
    (gradient accumulation). Changes the result."""
    threads_per_replica: Annotated[int, Range(1, 4096)] = 1
    """Threads per operation. If above 1, replicas run one after another. Changes the result."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Arithmetic of the layers; the state is always float32. bfloat16 is faster on CPUs that have
    AVX512_BF16. float16, for GPUs, scales the loss so that small gradients are not lost."""
    kernels: Literal["auto", "own", "tensorflow"] = "auto"
    """What computes convolutions and BatchNorm on CPUs. own: Paceline's kernels, up to
    twice as fast; tensorflow: TensorFlow's; auto: own where they can be used. The choice changes
    the bits, so the run stores it and workers compare it."""
    evaluate_every: Annotated[float, Range(0)] = 1.0
    """Epochs between evaluations; 0 evaluates only at the end."""
    save_every: Annotated[float, Range(0)] = 1.0
    """Epochs between checkpoints; 0 saves only at the end."""
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """Seed for initialization, shuffling and augmentation."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_training(self)
        _check_images(self)
        check_groups(self.optimizer)
        if not self.model.build:
            _check_resnet(self.model)

    @property
    def replica_batch_size(self) -> int:
        """Examples of one replica in one step."""
        return self.global_batch_size // self.replicas

    def to_json(self) -> Json:
        """Return the experiment as plain containers."""
        plain: Json = to_json(self)
        return plain

    @staticmethod
    def from_json(values: Json) -> Experiment:
        """Rebuild an experiment; an unknown field is an error."""
        return from_json(Experiment, values)

    def changes_to(self, new: Experiment) -> list[str]:
        """Return how another experiment differs, as lines `field: old -> new`. For `MOVABLE`
        fields, the run folder compares the data and the kernels in use."""
        return diff(self.to_json(), new.to_json(), ignore=MOVABLE)

    def digest(self, ignore: tuple[str, ...] = ()) -> str:
        """Return the hash in the name of the run folder.

        It covers only values that differ from the defaults, so a new field does not change old
        names. If `MOVABLE` is ignored, it stays the same when a run moves.
        """
        changes = diff(Experiment().to_json(), self.to_json(), ignore)
        return hashlib.sha256("\n".join(changes).encode()).hexdigest()[:8]


def _check_training(e: Experiment) -> None:
    boundaries, factors, weights = e.schedule.boundaries, e.schedule.factors, e.loss.class_weights
    staleness, method, patience = e.sync.max_staleness, e.sync.method, e.early_stopping.patience
    if e.global_batch_size % e.replicas:
        fitting = max(1, e.global_batch_size // e.replicas) * e.replicas
        raise UserError(
            f"global-batch-size {e.global_batch_size} cannot be divided among {e.replicas} "
            f"replicas; use {fitting} or other --replicas"
        )
    if e.epochs <= 0 and e.steps <= 0:
        raise UserError("nothing to train: pass --epochs or --steps above 0")
    has_validation = e.data.validation or e.data.dir or e.data.build  # data may have its own
    if patience and not (has_validation and e.evaluate_every):
        raise UserError(
            f"early-stopping.patience is {patience}; early stopping needs a validation split and "
            "evaluations: pass --data.validation and --evaluate-every above 0"
        )
    if e.precision == "float16" and method != "gradients":
        raise UserError(
            f"precision float16 only works with sync.method gradients, not {method}: all replicas "
            "share one loss scale; use bfloat16 or float32"
        )
    if staleness != -1 and method != "async":
        raise UserError(
            f"sync.max-staleness is {staleness} with sync.method {method}; it only works with "
            "sync.method async"
        )
    if len(boundaries) != len(factors) or list(boundaries) != sorted(boundaries):
        raise UserError(
            f"schedule.boundaries {boundaries} and schedule.factors {factors} must have the same "
            "length, and boundaries must rise"
        )
    warmup = e.schedule.warmup
    if isinstance(warmup, str) and not re.fullmatch("[0-9]{1,9}/[1-9][0-9]{0,8}", warmup):
        raise UserError(f"schedule.warmup is {warmup!r}; give epochs, or a share such as 1/5")
    if isinstance(weights, tuple) and weights and max(weights) == 0:
        raise UserError(f"loss.class-weights is {weights}; at least one number must be above 0")


def _check_images(e: Experiment) -> None:
    augment, scaling, epochs = e.augment, e.scaling, e.augment.size_epochs
    if len(epochs) != len(augment.sizes) or list(epochs) != sorted(set(epochs)):
        raise UserError(
            f"augment.sizes {augment.sizes} and augment.size-epochs {epochs} must have the same "
            "length, and epochs must rise"
        )
    if augment.crop_size and e.data.image_size:
        raise UserError(
            f"augment.crop-size is {augment.crop_size} and data.image-size {e.data.image_size}; "
            "give one of them: crop-size for images of a fixed size, image-size for others"
        )
    check_records(e.records)
    if scaling.mean == "auto" and not scaling.method.startswith("mean"):
        raise UserError(
            f"scaling.mean is auto with scaling.method {scaling.method}, which takes no means; use "
            "mean_std or mean"
        )


def check_source(data: Data) -> None:
    """Raise a UserError if a folder is given to the source that draws its images."""
    if data.source == "shapes" and data.dir and not data.build:
        advice = "for images of your own, train the recipe my-images or pass --data.source auto"
        raise UserError(f"data.dir is {data.dir}, but data.source shapes draws images; {advice}")


def check_records(records: Records) -> None:
    """Raise a UserError if TFRecords cannot be read so."""
    check_fields(records, "records.")
    if len(records.raw_shape) not in (0, 3):
        raise UserError(
            f"records.raw-shape is {records.raw_shape}; give height, width and channels: 32 32 3"
        )


def _check_resnet(model: Model) -> None:
    depth, unit = model.depth, 6 if model.block == "basic" else 9
    if model.activation != "relu" and model.leakiness:
        raise UserError(
            f"model.leakiness is {model.leakiness} with model.activation {model.activation}; "
            "leakiness only works with model.activation relu"
        )
    if model.zero_gamma and (model.version == "v2" or not model.norm_scale):
        raise UserError(
            "model.zero-gamma is for v1 and v1.5, whose blocks end in a BatchNorm, and cannot be "
            "combined with --no-model.norm-scale"
        )
    if model.layout == "imagenet" and depth not in IMAGENET_STAGES:
        nearest = min(IMAGENET_STAGES, key=lambda known: abs(known - depth))
        raise UserError(
            f"model.depth is {depth}; the imagenet layout has "
            f"{', '.join(map(str, IMAGENET_STAGES))} layers: {nearest} is nearest"
        )
    if model.layout == "cifar" and (depth < unit + 2 or (depth - 2) % unit):
        low = max(1, (depth - 2) // unit) * unit + 2
        other = "; --model.layout imagenet has this depth" if depth in IMAGENET_STAGES else ""
        raise UserError(
            f"model.depth is {depth}; a {model.block} CIFAR ResNet has {unit}n+2 layers: "
            f"{low} or {low + unit} is nearest{other}"
        )


KERAS = "keras:"
"""What the name of a model of `keras.applications` begins with: keras:ResNet50, or with a file of
weights keras:ResNet50:FILE."""


def parse_application(spec: str) -> tuple[str, str]:
    """Return the name of an application and the file of its weights, which may be empty."""
    name, _, file = spec.removeprefix(KERAS).partition(":")
    return name, file


def application_of(model: Model) -> str:
    """Return the name of the application that `build`, or else `init_from`, names; or nothing."""
    spec = model.build or model.init_from
    return parse_application(spec)[0] if spec.startswith(KERAS) else ""
