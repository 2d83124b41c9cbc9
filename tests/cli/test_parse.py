"""Flags that are wrong: one line, exit code 2, and nothing is written."""

from pathlib import Path

import pytest

from helpers import assert_refused, files_in, paceline
from in_process import paceline_here


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("trian", ["unknown command 'trian'", "did you mean 'train'?"]),
        ("train smoke --model.depth 9", ["model.depth is 9", "6n+2", "8 or 14"]),
        ("train smoke --replicas 3", ["32", "3 replicas", "use 30"]),
        ("train smoke --workers 0", ["workers is 0", "1 or more"]),
        (
            "train smoke --workers 5",
            ["workers is 5", "only 4 replicas", "use 4 workers or fewer", "--replicas 5 or more"],
        ),
        ("train smok", ["unknown recipe 'smok'", "did you mean 'smoke'?"]),
        (
            "train smoke --modle.depth 8",
            ["unknown flag --modle.depth", "did you mean --model.depth?"],
        ),
        ("train smoke --replica 2", ["unknown flag --replica", "did you mean --replicas?"]),
        ("train smoke --depth=8", ["unknown flag --depth", "did you mean --model.depth?"]),
        ("train smoke --lr=-1", ["schedule.rate is -1", "0 or more"]),
        ("train smoke --batch_size 30", ["global-batch-size 30", "4 replicas"]),
        ("train smoke --optimizer adam", ["'adam'", "--optimizer.name", "('sgd', 'adamw')"]),
        ("train smoke --model resnet50", ["--model.depth N", "--model.build keras:ResNet50"]),
        ("train resnet50", ["imagenet-resnet50, uai-resnet50", "your own images: finetune"]),
        ("train smoke --train_steps 5", ["did you mean --steps?"]),
        ("train smoke --resnet_size 50", ["did you mean --model.depth?"]),
        ("train smoke --num_gpus=4", ["unknown flag --num-gpus; pass --gpus N"]),
        ("train smoke --gpus", ["--gpus needs a number, such as --gpus 4"]),
        ("train smoke --pretrained", ["did you mean --model.init-from?"]),
        ("train smoke --amp", ["did you mean --precision?"]),
        ("train smoke --resume", ["the same command continues"]),
        ("train smoke --data photos", ["shapes draws images", "the recipe my-images"]),
        ("train smoke --ps 1 --chief-trains", ["workers is 1", "pass --workers 2 or more"]),
        ("train smoke --gpus=2 --replicas 2", ["pass --gpus or --replicas"]),
        ("train smoke --gpus 4 --global-batch-size 30", ["30", "4 replicas"]),
        ("train smoke --grad-accum 2", ["more --replicas than devices", "in turns"]),
        ("train smoke --help optimiser", ["no help for 'optimiser'", "'optimizer'"]),
        ("train smoke --xyzzy", ["unknown flag --xyzzy (see paceline train smoke --help)"]),
        ("train --seed 1 smoke", ["cannot understand 'smoke'", "the recipe comes first"]),
        (
            "train smoke --model.depth eight",
            ["--model.depth", "'eight'", "(see paceline train smoke --help)"],
        ),
        ("train smoke --schedule.rate high", ["--schedule.rate", "'high'"]),
        (
            "train smoke --precision float64",
            ["'float64'", "'--precision'", "('float32', 'bfloat16', 'float16')"],
        ),
        ("train smoke --run-dir", ["Missing value", "'--run-dir'"]),
        ("train smoke --scaling.mean 1 2", ["--scaling.mean", "{auto}", "['1', '2']"]),
        ("train smoke --loss.class-weights equal", ["--loss.class-weights", "{balanced}"]),
        ("eval", ["RUN"]),
        ("eval x --dir y", ["did you mean --data.dir?"]),
        ("predict x y --chekpoint 1", ["did you mean --checkpoint?"]),
        ("train smoke --loss.class-weights 0 0", ["loss.class-weights is (0.0, 0.0); at"]),
        ("train smoke --augment.hue 0.6", ["augment.hue is 0.6; it must be 0 to 0.5"]),
        ("train smoke --augment.rand-augment -1", ["augment.rand-augment is -1; it must be 0"]),
        (
            "train smoke --precision float16 --sync.method weights",
            ["precision float16 only works with sync.method gradients, not weights"],
        ),
        (
            "train smoke --precision float16 --workers 1 --ps 1",
            ["precision float16 does not work with parameter servers"],
        ),
        (
            "train smoke --scaling.mean auto --scaling.method unit",
            ["scaling.mean is auto with scaling.method unit, which takes no means"],
        ),
        ("train smoke --ps -1", ["ps is -1"]),
        ("train smoke --ps 1 --on ray", ["parameter servers run on local, tf_config"]),
        ("train smoke --keep 0", ["keep is 0", "1 or more"]),
        ("data info nowhere", ["there is no folder nowhere"]),
        ("data fetsch cifar10", ["unknown command 'data fetsch'", "did you mean 'fetch'?"]),
        ("recipes all", ["cannot understand 'all'", "paceline recipes --help"]),
    ],
)
def test_a_mistake_gets_one_line_and_creates_nothing(
    arguments: str, parts: list[str], here: Path
) -> None:
    assert_refused(paceline_here(*arguments.split(), cwd=here), *parts)
    assert files_in(here) == set()


@pytest.mark.slow
def test_a_mistake_gets_one_line_from_the_real_program(here: Path) -> None:
    assert_refused(paceline("train", "smoke", "--replicas", "3", cwd=here), "3 replicas")
    for flags, words in (
        ("--sync.method weights --ps 1", "weights does not work with parameter servers"),
        ("--sync.method async", "async needs parameter servers; pass --ps M"),
    ):
        assert_refused(paceline("train", "smoke", *flags.split(), cwd=here), words)
    refused = paceline("train", "smoke", "--devices", "gpu", cwd=here)
    assert_refused(refused, "devices is gpu", "no GPU")
    assert files_in(here) <= {"runs"}
