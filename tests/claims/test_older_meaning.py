"""docs/coming-from.md: the new commands mean what the old ones did.

What an old command did comes from the code of its system: its default flags, and how it divided a
batch. Nothing is trained, and no GPU is needed.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import NamedTuple

import pytest
from test_coming_from import COMMANDS_NOW, TEXT

from paceline.cli.parse import _unknown, flags_of, parse
from paceline.cli.train import Train
from paceline.engines.placement import assign
from paceline.experiment.names import SHORT_NAMES
from paceline.experiment.plan import build_plan
from paceline.experiment.schedule import rates_at
from paceline.places.tf_config import parse_tf_config

CIFAR, WITHOUT_VALIDATION, IMAGENET = 45_000, 50_000, 1_281_167
HOSTS = {"master": ["ip0:2222"], "worker": ["ip1:2222"], "ps": ["ip0:2223", "ip1:2223"]}
"""The cluster that both older systems show. Their masters train."""


class Meaning(NamedTuple):
    workers: int
    replicas: int
    per_replica: int
    gpus: int
    """Of all workers together; 0 is the CPU."""
    rate: float
    steps: int
    """In all. Ray's had no last step: those of the recipe, as far as the schedule goes."""
    falls: tuple[int, ...]
    """Steps at which the learning rate falls."""


ESTIMATOR = (82 * 351, 123 * 351)  # 45,000 // 128 steps in an epoch; epoch 300 is after the end
EPOCH = WITHOUT_VALIDATION // 128
MEANINGS = {
    # Ray, 2017: a batch of 128 for each actor; int(20000 * i / sqrt(actors)); it had no last step
    "test_batch.bin --num_gpus=1`": Meaning(1, 1, 128, 1, 0.1, 85_000, (40_000, 60_000, 80_000)),
    "`--num_gpus=2`": Meaning(2, 2, 128, 2, 0.1, 60_000, (28_284, 42_426, 56_568)),
    "`--num_gpus=0`, on one": Meaning(1, 1, 128, 0, 0.1, 85_000, (40_000, 60_000, 80_000)),
    # Estimators, 2017: a batch of --train_batch_size for each worker, divided among its GPUs
    "model_dir --num_gpus=0 --train_steps=1000": Meaning(1, 1, 128, 0, 0.1, 1_000, ()),
    "--num_layers=32 --train_batch_size=256": Meaning(1, 1, 256, 0, 0.2, 1_000, ()),
    "on master, worker and ps": Meaning(2, 8, 32, 8, 0.1, 40_000, (82 * 175, 123 * 175)),
    "the guide, but on one machine": Meaning(
        2, 2, 128, 0, 0.1, 80_000, (82 * 175, 123 * 175, 300 * 175)
    ),
    "without `--sync`": Meaning(2, 2, 128, 0, 0.1, 80_000, (82 * 175, 123 * 175, 300 * 175)),
    # UAI, 2019: a batch for each worker, divided among its GPUs; 100 epochs
    "nvidia-docker": Meaning(1, 1, 128, 1, 0.1, 10_009 * 100, (30, 60, 80, 90)),
    "without a container": Meaning(1, 1, 128, 1, 0.1, 10_009 * 100, (30, 60, 80, 90)),
    "--resnet_size=101": Meaning(2, 2, 256, 2, 0.1, 2_502 * 100, (30, 60, 80, 90)),
    "| `--num_gpus=4`": Meaning(1, 4, 32, 4, 0.1, 10_009 * 100, (30, 60, 80, 90)),
    "from `master` to `chief`": Meaning(2, 2, 128, 2, 0.1, 5_004 * 100, (30, 60, 80, 90)),
    # the official models, 2019: a global batch of 128
    "| `python resnet_cifar_main.py": Meaning(1, 1, 128, 0, 0.1, EPOCH, ()),
    "in one shell: `export TF_CONFIG": Meaning(2, 2, 64, 0, 0.1, EPOCH, ()),
    "spark-submit": Meaning(2, 2, 64, 0, 0.1, EPOCH, ()),
}
"""By a part of the left column."""


def meaning_of(command: str, old: str) -> Meaning:
    """Return what a new command computes, on hosts that have the GPUs that it asks for."""
    words = shlex.split(command[command.index(" train ") :])[1:]
    train = parse(Train, "paceline train", words[1:], default=Train.of_recipe(words[0]))
    e, workers = train.experiment, train.place.workers
    if "master" in old:
        task = {"cluster": HOSTS, "task": {"type": "worker", "index": 0}}
        workers = parse_tf_config(json.dumps(task), train.place.ignore_ps)[0].num_workers
    gpus = e.replicas // workers if train.place.devices == "gpu" else 0
    hosts = [str(n) for n in range(workers)]
    shares = assign(hosts, dict.fromkeys(hosts, gpus), dict.fromkeys(hosts, 8), e.replicas)
    examples = {"cifar10": WITHOUT_VALIDATION, "tfrecord": IMAGENET}[e.data.source]
    plan = build_plan(e, examples - e.data.validation)
    epochs, ends = (
        plan.steps_per_epoch,
        [round(b * plan.steps_per_epoch) for b in e.schedule.boundaries],
    )
    falls = tuple(step for step in ends if step < plan.total_steps)
    for step in falls:
        before, after = (rates_at(e, plan, n).learning_rate for n in (step - 1, step))
        assert after < before
    in_epochs = e.data.source == "tfrecord"
    return Meaning(
        workers,
        e.replicas,
        e.replica_batch_size,
        sum(len(share.gpus) for share in shares),
        rates_at(e, plan, 0).learning_rate,
        plan.total_steps,
        tuple(step // epochs for step in falls) if in_epochs else falls,
    )


@pytest.mark.parametrize("part", MEANINGS)
def test_a_new_command_computes_what_the_old_one_did(part: str) -> None:
    (row,) = (row for row in TEXT.splitlines() if row.startswith("|") and part in row)
    old, new = row.strip("| ").rsplit(" | ", 1)
    assert meaning_of(new.strip("`"), old) == MEANINGS[part]


def test_every_command_that_names_gpus_has_a_meaning() -> None:
    named = {command for command in COMMANDS_NOW if "--gpus " in command}
    rows = [row for row in TEXT.splitlines() if any(part in row for part in MEANINGS)]
    missing = [c for c in named if not any(c in row for row in rows) and "my_model" not in c]
    assert not missing


ANSWERS = {
    "data.dir": "train_data_path data_dir",
    "data.test": "eval_data_path",
    "gpus": "num_gpus",
    "data.source": "dataset",
    "run-dir": "eval_dir model_dir job-dir output_dir work_dir log_dir clean",
    "all test images count": "eval_batch_count eval_batch_size",
    "ray.address": "redis-address",
    "--ps": "is_cpu_ps variable-strategy",
    "model.depth": "num_layers resnet_size",
    "steps": "train_steps max_step max_train_steps",
    "global-batch-size": "train_batch_size batch_size",
    "optimizer.weight-decay": "weight_decay",
    "schedule.rate": "learning_rate",
    "optimizer.momentum": "momentum",
    "augment.flip": "use_distortion_for_training",
    "TF_CONFIG": "run_experiment worker_hosts task_index",
    "sync.method": "sync",
    "workers": "num_workers cluster_size",
    "threads-per-replica": "num_intra_threads",
    "cores": "num_inter_threads datasets_num_private_threads",
    "by itself": "force_gpu_compatible data-format tf_gpu_thread_mode per_gpu_thread_count",
    "at the start": "log_device_placement",
    "model.norm-momentum": "batch_norm_decay",
    "model.norm-epsilon": "batch_norm_epsilon",
    "data convert": "input_dir",
    "epochs": "train-epochs",
    "evaluate-every": "epochs_per_eval epochs_between_evals skip_eval",
    "ps": "num_ps",
    "tensorboard --logdir": "tensorboard enable_tensorboard",
    "early-stopping": "stop_threshold",
    "no counterpart": "run_eagerly all_reduce_alg num_packs enable_xla",
    "actions": "hooks",
    "paceline export": "export_dir enable_checkpoint_and_export",
    "workers always": "ds distribution_strategy",
    "shapes": "use_synthetic_data",
    "precision": "dtype loss_scale",
    "metrics.jsonl": "log_steps benchmark_log_dir",
    "profile": "profile_steps",
    "loss.label-smoothing": "label_smoothing",
    "model.init-from": "pretrained_model_checkpoint_path",
    "model.freeze": "fine_tune",
    "paceline eval": "eval_only",
    "model.version": "resnet_version",
    "optimizer.name": "optimizer",
}
"""A part of the answer, which is the new flag or the reason why there is none -> old flags of Ray's
example, the Estimators, UAI, TensorFlowOnSpark and the official models."""
OLD_FLAGS = {old: answer for answer, names in ANSWERS.items() for old in names.split()}


@pytest.mark.parametrize("old", OLD_FLAGS)
def test_an_old_flag_is_taken_or_answered_with_what_to_give(old: str) -> None:
    expected, known = OLD_FLAGS[old], set(flags_of(Train))
    name = old.replace("_", "-")
    if name in known or SHORT_NAMES.get(name) in known:
        assert expected in (name, SHORT_NAMES.get(name))
    else:
        assert re.search(rf"(?<![a-z.]){re.escape(expected)}(?![a-z])", _unknown(f"--{old}", Train))
