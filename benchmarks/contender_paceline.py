"""Paceline itself: the collective engine on the cores of this machine, as `paceline train` would run it in one process.

python -m benchmarks.contender_paceline DEPTH DATA_FOLDER
"""

from __future__ import annotations

import os
import sys

# Before TensorFlow is imported, as Paceline's workers do: it is off by default on many CPUs.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import tensorflow as tf

from benchmarks.protocol import serve
from paceline.data import build_source
from paceline.engines.collective import CollectiveEngine
from paceline.experiment import Data, Experiment, Model, Optimizer, Schedule
from paceline.models import build_model
from paceline.plan import build_plan
from paceline.training.replica import Core, build_core
from paceline.weights import build_template


def build_experiment(depth: int, folder: str) -> Experiment:
    """The training that all contenders do; more epochs than any benchmark sees."""
    return Experiment(
        data=Data(source="cifar10", dir=folder, padding=4, flip=True),
        model=Model(depth=depth),
        optimizer=Optimizer(nesterov=True, weight_decay=1e-4),
        schedule=Schedule(name="constant", rate=0.1),
        epochs=10_000,
        global_batch_size=128,
        replicas=2,
    )


def build_core_of(experiment: Experiment) -> Core:
    source = build_source(experiment.data)
    num_classes = len(source.classes)
    template = build_template(build_model(experiment, source.image_shape, num_classes))
    splits = {"train": source.train, "test": source.test}
    return build_core(experiment, build_plan(experiment, source.train.size), source, splits, template, num_classes)


def build_engine(experiment: Experiment) -> CollectiveEngine:
    """An engine on all cores of this process, with the state of step 0."""
    core = build_core_of(experiment)
    num_cores = len(os.sched_getaffinity(0))
    engine = CollectiveEngine(core, tf.distribute.get_strategy(), side_by_side=min(num_cores, experiment.replicas))
    engine.load(core.initial_state())
    return engine


def set_threads(experiment: Experiment) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(experiment.threads_per_replica)
    tf.config.threading.set_inter_op_parallelism_threads(len(os.sched_getaffinity(0)))


def main() -> None:
    experiment = build_experiment(int(sys.argv[1]), sys.argv[2])
    set_threads(experiment)
    engine, step = build_engine(experiment), 0

    def train(steps: int) -> float:
        nonlocal step
        engine.advance(step, step + steps)
        step += steps
        return steps * experiment.global_batch_size

    serve(train)


if __name__ == "__main__":
    main()
