"""The experiment: everything that decides the numbers, as frozen, checked data that JSON can hold.

It knows nothing of places, run folders or TensorFlow. The names of fields are the flags of the
command line; the docstring below a field is the help text of its flag.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from paceline.experiment.augmentation import Augmentation as Augmentation
from paceline.experiment.augmentation import Scaling as Scaling
from paceline.experiment.data import Data as Data
from paceline.experiment.data import Records as Records
from paceline.experiment.diff import diff
from paceline.experiment.early_stopping import EarlyStopping as EarlyStopping
from paceline.experiment.fields import Range, check_fields, from_json, to_json
from paceline.experiment.groups import Group as Group
from paceline.experiment.limits import check_rules
from paceline.experiment.model import Model as Model
from paceline.experiment.optimizer import Average as Average
from paceline.experiment.optimizer import Loss as Loss
from paceline.experiment.optimizer import Optimizer as Optimizer
from paceline.experiment.optimizer import Schedule as Schedule


@dataclass(frozen=True)
class Sync:
    """What replicas share, and how often."""

    method: Literal["gradients", "weights", "async"] = "gradients"
    """gradients: every step applies the mean gradient. weights: each replica trains alone for
    `every` steps, then all state is averaged. async: each replica's gradient is applied when it
    arrives, with 1/replicas of the rate (parameter servers only)."""
    every: Annotated[int, Range(1, 10**6)] = 10
    """Steps between two averages (method weights)."""
    max_staleness: int = -1
    """Maximum number of updates a gradient may lag behind (method async). -1: unlimited."""


@dataclass(frozen=True)
class Experiment:
    """All that decides the numbers. The same experiment gives the same bits in every place."""

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
    least the number of workers; one per core or GPU is fastest. Changes the result."""
    threads_per_replica: Annotated[int, Range(1, 4096)] = 1
    """Threads per TensorFlow operation. Above 1, replicas run one after another. Changes the
    result."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Arithmetic of the layers; the state is always float32. float16, for GPUs, scales the loss so
    that small gradients are not lost."""
    kernels: Literal["auto", "own", "tensorflow"] = "auto"
    """What computes convolutions and BatchNorm on CPUs. own: Paceline's kernels (AVX2, float32), up
    to twice as fast; tensorflow: TensorFlow's; auto: own where they can be used. The choice decides
    the bits: it is stored in the run and compared between workers."""
    evaluate_every: Annotated[float, Range(0)] = 1.0
    """Epochs between evaluations; 0 evaluates only at the end."""
    save_every: Annotated[float, Range(0)] = 1.0
    """Epochs between checkpoints; 0 saves only at the end."""
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """Seed for initialization, shuffling and augmentation."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_rules(self)

    @property
    def replica_batch_size(self) -> int:
        """Examples of one replica in one step."""
        return self.global_batch_size // self.replicas

    def to_json(self) -> dict[str, Any]:
        """Return the experiment as plain containers."""
        plain: dict[str, Any] = to_json(self)
        return plain

    @staticmethod
    def from_json(values: dict[str, Any]) -> Experiment:
        """Rebuild an experiment; an unknown field is an error."""
        return from_json(Experiment, values)

    def changes_to(self, new: Experiment) -> list[str]:
        """Return what differs in another experiment, as lines `field: old -> new`.

        `data.dir` and `kernels` are left out: the run folder compares the data themselves, and the
        kernels that are really used.
        """
        return diff(self.to_json(), new.to_json(), ignore=("data.dir", "kernels"))

    def digest(self) -> str:
        """Return the hash in the name of the run folder.

        It covers what differs from the defaults, so that a new field does not change old names.
        """
        changes = diff(Experiment().to_json(), self.to_json())
        return hashlib.sha256("\n".join(changes).encode()).hexdigest()[:8]
