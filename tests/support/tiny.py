"""Data, models and cores small enough that a test of the real thing takes a second. Not a test
itself."""

from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from paceline.build import build_model
from paceline.data.images import image_shape
from paceline.data.source import Source, in_memory
from paceline.experiment.experiment import (
    Augmentation,
    Data,
    Experiment,
    Model,
    Optimizer,
    Schedule,
)
from paceline.experiment.optimizer import Group, parse_group
from paceline.experiment.plan import build_plan
from paceline.experiment.recipes.table import get_recipe
from paceline.maths.metrics import Tail
from paceline.maths.replica import Core, Step, build_core
from paceline.maths.template import build_template
from paceline.models.accelerate import accelerate

SHAPE, CLASSES = (8, 8, 3), 10

EXPERIMENT = Experiment(
    augment=Augmentation(padding=1, flip=True),
    model=Model(depth=8, width=4),
    optimizer=Optimizer(nesterov=True),
    schedule=Schedule(name="cosine", rate=0.05, warmup=0.5),
    global_batch_size=16,
    replicas=4,
    epochs=3,
    seed=11,
)
_SPEEDRUN = get_recipe("cifar10-speedrun")
SMALL_SPEEDRUN = replace(
    _SPEEDRUN,
    data=Data(source="shapes", train_size=80, test_size=30),
    augment=replace(_SPEEDRUN.augment, sizes=(16,), size_epochs=(1.0,)),
    model=replace(_SPEEDRUN.model, width=8, whitening=40),
    global_batch_size=16,
    replicas=2,
    epochs=2,
)


def pictures(
    count: int, shape: tuple[int, int, int] = SHAPE, classes: int = CLASSES, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Noise, brighter where the label is higher, so that there is something to learn."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count).astype(np.int32)
    noise = random.integers(0, 128, (count, *shape))
    return (noise + (128 * labels // classes)[:, None, None, None]).astype(np.uint8), labels


def build_source(
    train: int = 50, test: int = 13, shape: tuple[int, int, int] = SHAPE, classes: int = CLASSES
) -> Source:
    splits = [
        in_memory(*pictures(count, shape, classes, seed))
        for seed, count in enumerate((train, test))
    ]
    return Source(*splits, tuple(str(label) for label in range(classes)), shape)


def build_small_model(seed: int = 0, classes: int = CLASSES) -> keras.Model:
    """A convolution with BatchNorm and a dense layer: every kind of vector, at little cost."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Conv2D(4, 3, 2, use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(classes),
        ]
    )


def build_tiny_core(
    experiment: Experiment = EXPERIMENT,
    model: keras.Model | None = None,
    source: Source | None = None,
    validation: int = 0,
) -> Core:
    """The core of an experiment on noise; `model` instead of the experiment's own."""
    source = source or build_source()
    splits = {"train": source.train, "test": source.test}
    if validation:
        splits["validation"] = in_memory(
            *pictures(validation, source.image_shape, len(source.classes), seed=9)
        )
    classes = len(source.classes)
    model = model or build_model(experiment, image_shape(experiment, source), classes)
    plan = build_plan(experiment, source.train.size)
    fast = accelerate(model) if experiment.kernels == "own" else None
    return build_core(experiment, plan, source, splits, build_template(model, fast), classes)


def with_optimizer(experiment: Experiment = EXPERIMENT, **changes: object) -> Experiment:
    return replace(experiment, optimizer=replace(experiment.optimizer, **changes))


def groups(*texts: str) -> tuple[Group, ...]:
    """Groups of weights, as on the command line."""
    return tuple(map(parse_group, texts))


def number(value: int) -> tf.Tensor:
    """A step or a replica as the core takes it."""
    return tf.constant(value, tf.int64)


def dense_model(*layers: keras.Layer, classes: int = CLASSES, **options: object) -> keras.Model:
    """Return some layers between flat pixels and logits."""
    keras.utils.set_random_seed(4)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Flatten(),
            *layers,
            keras.layers.Dense(classes, **options),
        ]
    )


def call_replica(
    core: Core,
    step: int = 0,
    replica: int = 0,
    state: dict[str, np.ndarray] | None = None,
    stop: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, dict[Tail, float]]:
    """Return the parts of a replica's vector: gradient, new stats, tail by name."""
    state = state or core.initial_state().vectors
    weights = [tf.constant(state[name]) for name in ("params", "stats")]
    now = Step(number(step), number(replica), tf.constant([stop, 0.0]))
    vector = core.replica_vector(*weights, now).numpy()
    template, size = core.template, core.layout.sizes()["params"]
    gradient, moving, tail = np.split(vector, [size, size + template.moving_size()])
    stats = template.merge(tf.constant(state["stats"]), tf.constant(moving)).numpy()
    return gradient, stats, dict(zip(Tail, tail[: len(Tail)], strict=True))
