"""The experiment: everything that decides the numbers, as frozen, validated, JSON-able data.

It knows nothing of places, run folders or TensorFlow. Field names are the flags of the command line; the docstring under a
field is its help text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paceline.errors import UserError, did_you_mean

Block = Literal["basic", "bottleneck"]

IMAGENET_STAGES: dict[int, tuple[Block, tuple[int, ...]]] = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
    200: ("bottleneck", (3, 24, 36, 3)),
}
"""By depth: the kind of block, and how many each stage has (He et al. 2015, table 1; 200 from He et al. 2016)."""


@dataclass(frozen=True)
class Data:
    """What is learned from, and how pictures are prepared."""

    source: str = "shapes"
    """Name of the data set: shapes, cifar10, cifar100, arrays, tfrecord, pictures; auto looks into the folder."""
    dir: str = ""
    """Folder of the data set, for sources that read files."""
    build: str = ""
    """A source of your own, as package.module:function or file.py:function; it takes this Data and returns a paceline.data.Source."""
    validation: int = 0
    """Training examples held out for choosing the best checkpoint."""
    split: float = 0.0
    """Share of a single folder of classes that becomes the test split (pictures); the same pictures every time."""
    image_key: str = ""
    """Feature that holds the picture in TFRecords; empty: as the conversion noted, else image/encoded."""
    label_key: str = ""
    """Feature that holds the label in TFRecords; empty: as the conversion noted, else image/class/label."""
    first_label: int = -1
    """Label of the first class in TFRecords, 0 or 1; -1: as the conversion noted, else 0."""
    raw_shape: tuple[int, ...] = ()
    """Height, width and channels of TFRecord pictures that are plain bytes; empty: from the first record."""
    raw_order: Literal["", "channels_last", "channels_first"] = ""
    """Order of those bytes; empty: as the conversion noted, else channels_last."""
    skip_bad: bool = False
    """Leave damaged TFRecords out, the same ones on every worker, instead of stopping. Reads everything once."""
    train_size: int = 0
    """Number of training pictures of generated sources (shapes); 0 is the source's own."""
    test_size: int = 0
    """Number of test pictures of generated sources (shapes); 0 is the source's own."""
    padding: int = 0
    """Zero pixels added on each side before a random crop of the original size; 0 crops nothing."""
    flip: bool = False
    """Mirror half of the training pictures."""
    alternate_flip: bool = False
    """With flip: mirror each picture in every second epoch instead of at random, so that few epochs show both sides of all."""
    cutout: int = 0
    """Side of a square that is blanked at a random place of each training picture; 0 for none."""
    mixup: float = 0.0
    """Alpha of mixup: pictures and labels of a replica's slice are blended in pairs; 0 for none."""
    image_size: int = 0
    """Side of the square pictures that the model sees, for encoded pictures of any size and for enlarging small ones; 0 as they are."""
    crop: Literal["area", "short-side"] = "area"
    """Training crops of encoded pictures. area: a random share of the area at an aspect of 3/4 to 4/3; short-side: a square after the
    short side was made 256/224 to 512/224 of the image size. Evaluation takes the central square of a short side of 256/224."""
    crop_area_min: float = 0.08
    """The smallest share of a picture's area that a training crop takes (crop area)."""
    scaling: Literal["standardise", "unit", "mean", "mean_std"] = "mean_std"
    """standardise: each picture to mean 0, deviation 1; unit: x/128 - 1; mean: less the channel means below; mean_std: also divided by
    the channel deviations below."""
    mean: tuple[float, float, float] = (125.3, 123.0, 113.9)
    """Channel means (0 to 255) for mean and mean_std."""
    std: tuple[float, float, float] = (63.0, 62.1, 66.7)
    """Channel deviations (0 to 255) for mean_std."""


@dataclass(frozen=True)
class Model:
    """The network: a ResNet of the family, or any Keras model."""

    build: str = ""
    """A Keras model of your own, as package.module:function or file.py:function; called with image_shape and num_classes."""
    layout: Literal["cifar", "imagenet"] = "cifar"
    """cifar: a 3x3 convolution and three stages, for small pictures; imagenet: 7x7 with stride 2, max-pooling and four stages."""
    depth: int = 20
    """Layers. cifar: 6n+2, or 9n+2 with bottleneck blocks; imagenet: 18, 34, 50, 101, 152 or 200."""
    version: Literal["v1", "v1.5", "v2"] = "v1"
    """v1: He et al. 2015; v1.5: bottlenecks of imagenet stride on their 3x3, not on the first 1x1 (those of cifar always do);
    v2: pre-activation, He et al. 2016."""
    block: Block = "basic"
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1; the depths of imagenet have their own."""
    shortcut: Literal["", "A", "A-pool", "B", "B-norm", "B-first"] = ""
    """Where a block changes shape; empty is the layout's own, A or B-norm. A: every second pixel, zero channels; A-pool: average
    pooling, zero channels; B: 1x1 convolution; B-norm: 1x1 convolution and BatchNorm; B-first: as B-norm, also in the first block
    of the first stage."""
    width: int = 0
    """Channels of the first stage, doubled in each of the next; 0 is the layout's own, 16 or 64."""
    zero_gamma: bool = False
    """The last BatchNorm of each block begins at 0, so that blocks begin as their shortcuts (v1, v1.5)."""
    norm_momentum: float = 0.9
    """Share of the old moving statistics that stays in each step."""
    norm_epsilon: float = 1e-5
    """Added to variances by BatchNorm."""
    leakiness: float = 0.0
    """Slope of the activation below zero."""
    initializer: Literal["he_fan_out", "he_normal", "lecun_normal", "glorot_uniform"] = "he_fan_out"
    """How convolution kernels begin."""
    num_classes: int = 0
    """Outputs; 0 takes the number of classes of the data."""
    outputs: Literal["logits", "probabilities"] = "logits"
    """What the model returns."""
    init_from: str = ""
    """Start from the weights of this run folder or .keras file; layers whose shape differs, like the head, start new."""


@dataclass(frozen=True)
class Optimizer:
    """How the mean gradient moves the weights."""

    name: Literal["sgd", "rmsprop", "adamw"] = "sgd"
    """The rule."""
    momentum: float = 0.9
    """Momentum of sgd and rmsprop; beta 1 of adamw."""
    nesterov: bool = False
    """Nesterov's form of momentum (sgd)."""
    beta_2: float = 0.999
    """Decay of the mean of squares (rmsprop, adamw)."""
    epsilon: float = 1e-8
    """Added to the root of the mean of squares (rmsprop, adamw)."""
    weight_decay: float = 1e-4
    """Coefficient of the weight in its gradient; decoupled from the gradient in adamw."""
    decay: Literal["kernels", "kernels-and-bias", "all"] = "kernels"
    """Which weights decay: kernels only, kernels and biases but not BatchNorm's, or all."""
    clip_norm: float = 0.0
    """The mean gradient is scaled down to this norm; 0 for no limit."""
    label_smoothing: float = 0.0
    """Share of the label that is spread over all classes."""
    ema: float = 0.0
    """Decay of the moving average of weights that is evaluated; 0 for none."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step."""

    name: Literal["constant", "steps", "cosine", "one-cycle"] = "steps"
    """The curve after the warm-up."""
    rate: float = 0.1
    """The peak learning rate."""
    boundaries: tuple[float, ...] = ()
    """Epochs at which `steps` goes to the next factor."""
    factors: tuple[float, ...] = ()
    """What the rate is multiplied with after each boundary."""
    warmup: float = 0.0
    """Epochs of linear rise at the start; of one-cycle, the rising part."""
    warmup_from: float = 0.0
    """Where the warm-up begins, as a share of the peak."""
    final: float = 0.0
    """Where cosine and one-cycle end, as a share of the peak."""
    scale_to_batch: int = 0
    """The rate is for this batch size and grows linearly with the global batch; 0 for no scaling."""


@dataclass(frozen=True)
class Sync:
    """What replicas share, and how often."""

    method: Literal["gradients", "weights", "async"] = "gradients"
    """gradients: the mean gradient each step; weights: each replica trains alone for `every` steps, then all state is averaged;
    async: each replica's gradient is applied when it arrives, with 1/replicas of the rate (parameter servers)."""
    every: int = 10
    """Steps of a round of the method `weights`."""
    max_staleness: int = -1
    """How many gradients at most are applied between a replica's reading of the weights and its own gradient (async); -1: any."""


@dataclass(frozen=True)
class Experiment:
    """All that decides the numbers. The same experiment gives the same bits in every place."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    sync: Sync = field(default_factory=Sync)
    epochs: float = 1.0
    """Passes over the training data."""
    steps: int = 0
    """Total steps, instead of epochs; 0 uses epochs."""
    global_batch_size: int = 128
    """Examples of one step, over all replicas."""
    replicas: int = 2
    """Slices of the global batch, each with its own BatchNorm group: a power of two. As many as cores or GPUs is fastest."""
    threads_per_replica: int = 1
    """Threads inside an operation. Above 1, a process holds one replica."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the layers; the state is float32 always."""
    exact: bool = True
    """Add by the fixed tree, for the same bits in every place; off allows any all-reduce."""
    evaluate_every: float = 1.0
    """Epochs between evaluations; 0 only at the end."""
    save_every: float = 1.0
    """Epochs between checkpoints; 0 only at the end."""
    seed: int = 0
    """Of everything that is random."""

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def replica_batch_size(self) -> int:
        return self.global_batch_size // self.replicas

    def to_json(self) -> dict[str, Any]:
        return _to_json(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Experiment:
        return from_json(Experiment, values)

    def digest(self) -> str:
        """The hash that names the run folder: of what differs from the defaults, so that a new field leaves old names alone."""
        return hashlib.sha256(
            "\n".join(differences(Experiment().to_json(), self.to_json(), everything=True)).encode()
        ).hexdigest()[:8]


def differences(
    old: dict[str, Any], new: dict[str, Any], prefix: str = "", everything: bool = False
) -> list[str]:
    """What differs between two experiments in JSON, as lines `field: old -> new`. Where the data lie does not count, unless
    everything does: what they are is compared by the run folder."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        name, a, b = prefix + key, old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, name + ".", everything)
        elif a != b and (everything or name != "data.dir"):
            lines.append(f"{name}: {a!r} -> {b!r}")
    return lines


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """An experiment in JSON as one level, with the names of the flags' fields: `schedule.rate`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= (
            flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def _to_json(value: Any) -> Any:
    """Plain containers; a whole number in a field of floats is the float that it stands for."""
    if not dataclasses.is_dataclass(value):
        return list(value) if isinstance(value, tuple) else value
    hints, plain = get_type_hints(type(value)), {}
    for item in dataclasses.fields(value):
        own, hint = _to_json(getattr(value, item.name)), hints[item.name]
        if hint is float or (get_origin(hint) is tuple and float in get_args(hint)):
            own = [float(each) for each in own] if isinstance(own, list) else float(own)
        plain[item.name] = own
    return plain


def _check_choices(value: Any, prefix: str = "") -> None:
    """The command line checks choices by itself; this is for experiments made in Python or read from JSON."""
    hints = get_type_hints(type(value))
    for item in dataclasses.fields(value):
        own, name = getattr(value, item.name), prefix + item.name
        if dataclasses.is_dataclass(own):
            _check_choices(own, f"{name}.")
        elif get_origin(hints[item.name]) is Literal and own not in get_args(hints[item.name]):
            raise UserError(
                f"{name} is {own!r}; it must be one of {', '.join(map(repr, get_args(hints[item.name])))}"
            )


def from_json(kind: type, values: dict[str, Any], prefix: str = "") -> Any:
    """Rebuild a dataclass from JSON; an unknown field is an error, a missing one takes its default."""
    hints, known = get_type_hints(kind), [f.name for f in dataclasses.fields(kind)]
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise UserError(
                f"unknown field {prefix + key!r} in the experiment; {did_you_mean(key, known)}"
            )
        if dataclasses.is_dataclass(hints[key]):
            value = from_json(hints[key], value, f"{prefix}{key}.")
        made[key] = tuple(value) if isinstance(value, list) else value
    return kind(**made)


def _validate(e: Experiment) -> None:
    def need(fine: bool, message: str) -> None:
        if not fine:
            raise UserError(message)

    need(
        e.replicas >= 1 and e.replicas & (e.replicas - 1) == 0,
        f"replicas is {e.replicas}; it must be a power of two: 1, 2, 4, 8 ...",
    )
    need(
        e.global_batch_size > 0, f"global-batch-size is {e.global_batch_size}; it must be positive"
    )
    need(
        e.global_batch_size % e.replicas == 0,
        f"global-batch-size {e.global_batch_size} cannot be divided among {e.replicas} replicas; "
        f"use {max(1, e.global_batch_size // e.replicas) * e.replicas} or other --replicas",
    )
    need(
        e.threads_per_replica >= 1,
        f"threads-per-replica is {e.threads_per_replica}; it must be 1 or more",
    )
    need(math.isfinite(e.epochs), f"epochs is {e.epochs}; it must be a finite number")
    need(e.epochs > 0 or e.steps > 0, "nothing to train: give --epochs or --steps above 0")
    need(e.steps >= 0, f"steps is {e.steps}; it must be 0 (use epochs) or more")
    need(
        e.evaluate_every >= 0 and e.save_every >= 0,
        "evaluate-every and save-every are epochs, 0 or more",
    )
    need(e.sync.every >= 1, f"sync.every is {e.sync.every}; a round has 1 step or more")
    need(
        e.sync.max_staleness == -1 or (e.sync.max_staleness >= 0 and e.sync.method == "async"),
        f"sync.max-staleness is {e.sync.max_staleness} with sync.method {e.sync.method}; "
        "it is gradients, 0 or more (-1: no bound), and only async has it",
    )
    need(e.data.validation >= 0, f"data.validation is {e.data.validation}; it must be 0 or more")
    need(
        e.data.padding >= 0 and e.data.cutout >= 0 and e.data.mixup >= 0,
        "data.padding, data.cutout and data.mixup must be 0 or more",
    )
    need(
        e.data.image_size >= 0,
        f"data.image-size is {e.data.image_size}; it must be 0 (as the pictures are) or more",
    )
    need(
        0 < e.data.crop_area_min <= 1,
        f"data.crop-area-min is {e.data.crop_area_min}; it must be above 0 and at most 1",
    )
    need(all(s > 0 for s in e.data.std), f"data.std is {e.data.std}; deviations must be above 0")
    need(
        0 <= e.optimizer.momentum < 1,
        f"optimizer.momentum is {e.optimizer.momentum}; it must be in [0, 1)",
    )
    need(
        0 <= e.optimizer.beta_2 < 1,
        f"optimizer.beta-2 is {e.optimizer.beta_2}; it must be in [0, 1)",
    )
    need(0 <= e.optimizer.ema < 1, f"optimizer.ema is {e.optimizer.ema}; it must be in [0, 1)")
    need(
        0 <= e.optimizer.label_smoothing < 1,
        f"optimizer.label-smoothing is {e.optimizer.label_smoothing}; it must be in [0, 1)",
    )
    need(
        e.optimizer.clip_norm >= 0,
        f"optimizer.clip-norm is {e.optimizer.clip_norm}; it must be 0 (no limit) or more",
    )
    s = e.schedule
    need(s.rate >= 0, f"schedule.rate is {s.rate}; it must be 0 or more")
    need(
        len(s.boundaries) == len(s.factors) and list(s.boundaries) == sorted(s.boundaries),
        f"schedule.boundaries {s.boundaries} and schedule.factors {s.factors} must be of one length, boundaries rising",
    )
    need(
        e.model.num_classes >= 0,
        f"model.num-classes is {e.model.num_classes}; it must be 0 (from the data) or more",
    )
    if not e.model.build:
        _validate_resnet(e.model)


def _validate_resnet(m: Model) -> None:
    if m.width < 0:
        raise UserError(f"model.width is {m.width}; it must be 0 (the layout's own) or more")
    if m.zero_gamma and m.version == "v2":
        raise UserError(
            "model.zero-gamma is for v1 and v1.5; blocks of v2 do not end in a BatchNorm"
        )
    if m.layout == "imagenet" and m.depth not in IMAGENET_STAGES:
        nearest = min(IMAGENET_STAGES, key=lambda depth: abs(depth - m.depth))
        depths = ", ".join(map(str, IMAGENET_STAGES))
        raise UserError(
            f"model.depth is {m.depth}; the imagenet layout has {depths} layers: {nearest} is nearest"
        )
    unit = 6 if m.block == "basic" else 9
    if m.layout == "cifar" and (m.depth < unit + 2 or (m.depth - 2) % unit):
        low = max(1, (m.depth - 2) // unit) * unit + 2
        raise UserError(
            f"model.depth is {m.depth}; a {m.block} CIFAR ResNet has {unit}n+2 layers: {low} or {low + unit} is nearest"
            + ("; --model.layout imagenet has this depth" if m.depth in IMAGENET_STAGES else "")
        )
