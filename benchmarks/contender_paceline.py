"""Paceline with the collective engine, as `paceline train` runs it in one process.

    python -m benchmarks.contender_paceline MODEL DATA_FOLDER [ROUND_STEPS [INDEX ADDRESS ...]]

MODEL is `speedrun`, or the depth of a ResNet: 50 is ResNet-50 for images of 224 pixels from a
folder of arrays; all other depths are CIFAR ResNets. If ROUND_STEPS is above 1, it is that of
sync.method weights. With addresses, this is one of several workers on this machine, which all need
the same turns. The number of replicas is 2, or that in the variable PACELINE_BENCH_REPLICAS.
PACELINE_BENCH_PRECISION is the precision, by default float32. If PACELINE_BENCH_MEAN is `ring` or
`gather`, workers compute the mean by TensorFlow's all-reduce, or each from the vectors of all
workers.
"""

import os
import sys
from dataclasses import replace

from benchmarks.protocol import serve
from paceline.engines.base import Engine
from paceline.engines.devices import import_tensorflow
from paceline.experiment.experiment import (
    Augmentation,
    Data,
    Experiment,
    Group,
    Model,
    Optimizer,
    Schedule,
    Sync,
)
from paceline.experiment.recipes.table import get_recipe
from paceline.job import Cluster, Job, Place

REPLICAS = "PACELINE_BENCH_REPLICAS"
PRECISION = "PACELINE_BENCH_PRECISION"
MEAN = "PACELINE_BENCH_MEAN"


def build_experiment(depth: int, folder: str) -> Experiment:
    """Return the training of all contenders, with more epochs than any benchmark needs."""
    if depth == 50:
        return Experiment(
            data=Data(source="arrays", dir=folder),
            model=Model(layout="imagenet", depth=50, version="v1.5", num_classes=1000),
            optimizer=Optimizer(nesterov=True, weight_decay=1e-4),
            schedule=Schedule(name="constant", rate=0.01),
            epochs=10_000,
            global_batch_size=16,
            replicas=2,
        )
    replicas = int(os.environ.get(REPLICAS, "2"))
    return Experiment(
        data=Data(source="cifar10", dir=folder),
        augment=Augmentation(padding=4, flip=True),
        model=Model(depth=depth),
        optimizer=Optimizer(nesterov=True, weight_decay=1e-4),
        schedule=Schedule(name="constant", rate=0.1),
        epochs=10_000,
        global_batch_size=128 - 128 % replicas,
        replicas=replicas,
    )


def build_speedrun(folder: str) -> Experiment:
    """Return the recipe as it is after its first epochs: large crops, no whitening to train."""
    recipe = get_recipe("cifar10-speedrun")
    groups = (Group("whiten_conv/*", rate=0), *recipe.optimizer.groups[2:])
    return replace(
        recipe,
        data=replace(recipe.data, dir=folder),
        augment=replace(recipe.augment, sizes=(), size_epochs=()),
        optimizer=replace(recipe.optimizer, groups=groups),
        epochs=10_000,
    )


def build_engine(experiment: Experiment, cluster: Cluster | None = None) -> Engine:
    """Return what a worker builds for this experiment, with the state of step 0."""
    cluster = cluster or Cluster()
    job = Job(experiment, Place(on="local", workers=cluster.num_workers), cluster=cluster)
    import_tensorflow(job)
    if os.environ.get(MEAN) and cluster.num_workers > 1:
        replace_mean(os.environ[MEAN])
    from paceline.build import build_core
    from paceline.engines.collective import connect

    open_engine = connect(job, lambda: False)
    core = build_core(job)
    engine = open_engine(core)
    engine.load(core.initial_state())
    return engine


def replace_mean(name: str) -> None:
    """Let the engine add up the replicas in another way than Paceline does."""
    import tensorflow as tf

    from paceline.engines.collective import CollectiveEngine
    from paceline.maths.replica import add
    from paceline.maths.sums import tree_sum

    def ring(engine: CollectiveEngine, results: list[tf.Tensor]) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tree_sum(results, add))

    def gather(engine: CollectiveEngine, results: list[tf.Tensor]) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        rows = context.all_gather(tree_sum(results, add)[None], axis=0)
        return tree_sum(tf.unstack(rows, num=context.num_replicas_in_sync), add)

    setattr(CollectiveEngine, "_sum", {"ring": ring, "gather": gather}[name])  # noqa: B010  a method


def main() -> None:
    model, folder = sys.argv[1:3]
    speedrun = model == "speedrun"
    experiment = build_speedrun(folder) if speedrun else build_experiment(int(model), folder)
    precision = os.environ.get(PRECISION, "float32")
    experiment = replace(experiment, precision=precision)  # type: ignore[arg-type]
    round_steps = int((sys.argv[3:4] or ["1"])[0])
    if round_steps > 1:
        experiment = replace(experiment, sync=Sync(method="weights", every=round_steps))
    cluster = Cluster(tuple(sys.argv[5:]), int(sys.argv[4])) if len(sys.argv) > 5 else None
    engine, step = build_engine(experiment, cluster), 0

    def train(steps: int) -> float:
        nonlocal step
        steps = -(-steps // round_steps) * round_steps  # whole rounds
        engine.advance(step, step + steps)
        step += steps
        return steps * experiment.global_batch_size

    serve(train)


if __name__ == "__main__":
    main()
