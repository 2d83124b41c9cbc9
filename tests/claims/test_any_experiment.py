"""Every experiment gives the same bits with every engine: hypothesis draws the experiments."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, reject, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from helpers import SUPPORT
from kernel_checks import needs_kernels
from paceline.errors import UserError
from paceline.experiment.experiment import (
    Augmentation,
    Average,
    Data,
    EarlyStopping,
    Experiment,
    Loss,
    Model,
    Optimizer,
    Scaling,
    Schedule,
    Sync,
)
from paceline.experiment.optimizer import parse_group
from paceline.experiment.recipes.table import get_recipe
from tiny import SMALL_SPEEDRUN

SEED = int(os.environ.get("PACELINE_TEST_SEED", "1"))
"""Of the first test. The name of a test shows its seed."""
DATA = Data(source="shapes", train_size=48, test_size=10)
GROUPS = (
    *("*/kernel rule=muon rate=0.3", "*/beta rate=2 decay=0.01", "head_dense/* rate=0.5"),
    *("stem_conv/kernel until=0.5", "*/bias rate=0"),
)


def some(**choices: tuple[Any, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a value for each name, often the first."""
    return st.fixed_dictionaries(
        {name: st.sampled_from([values[0], *values]) for name, values in choices.items()}
    )


MODELS = some(
    depth=(8,),
    width=(8, 12),
    version=("v1", "v2"),
    shortcut=("A", "A-pool", "B-norm"),
    activation=("relu", "silu", "gelu"),
    leakiness=(0.0, 0.1),
    zero_gamma=(False, True),
    norm_scale=(True, False),
    initializer=("he_fan_out", "he_normal", "glorot_uniform"),
)
OPTIMIZERS = some(
    name=("sgd", "adamw"),
    nesterov=(False, True),
    momentum=(0.9, 0.0, 0.5),
    weight_decay=(5e-4, 0.0, 0.1),
    decay=("kernels", "kernels-and-bias", "all"),
    clip_norm=(0.0, 0.5, 100.0),
    groups=((), *((parse_group(each),) for each in GROUPS)),
)
AUGMENTATIONS = some(
    crop_size=(16,),
    padding=(0, 2),
    padding_mode=("zeros", "reflect"),
    flip=(False, True),
    alternate_flip=(False, True),
    cutout=(0, 5),
    brightness=(0.0, 0.3),
    contrast=(0.0, 0.3),
    saturation=(0.0, 0.3),
    hue=(0.0, 0.1),
    rand_augment=(0, 2),
    random_erasing=(0.0, 0.5),
    mixup=(0.0, 0.4),
    cutmix=(0.0, 1.0),
)
REST = some(
    replicas=(3, 4, 2, 1),
    global_batch_size=(12, 24),
    precision=("float32", "float32", "bfloat16", "float16"),
    seed=(0, 7, 2**32 - 1),
    steps=(3, 5),
)
PARTS = {
    "model": MODELS.map(lambda given: Model(**given)),
    "optimizer": OPTIMIZERS.map(lambda given: Optimizer(**given)),
    "augment": AUGMENTATIONS.map(lambda given: Augmentation(**given)),
    "average": some(decay=(0.0, 0.9), every=(1, 2), power=(0.0, 1.5)).map(
        lambda given: Average(**given)
    ),
    "loss": some(
        label_smoothing=(0.0, 0.1), class_weights=((), "balanced", tuple(range(1, 11)))
    ).map(lambda given: Loss(**given)),
    "scaling": some(method=("mean_std", "standardize", "unit"), mean=((125.3, 123.0, 113.9),)).map(
        lambda given: Scaling(**given)
    ),
    "schedule": some(name=("constant", "cosine", "one-cycle"), rate=(0.05,), warmup=(0.0, 0.3)).map(
        lambda given: Schedule(**given)
    ),
    "sync": some(method=("gradients", "gradients", "weights"), every=(2, 3)).map(
        lambda given: Sync(**given)
    ),
}


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    try:
        parts = {name: draw(part) for name, part in PARTS.items()}
        return Experiment(data=DATA, **parts, **draw(REST))
    except UserError:  # of settings that do not fit together
        reject()


class Engines:
    """Processes of engines, which start with the first experiment, and again after an error."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._log, self._names, self._program = folder / "engines.log", names, None

    def train(self, experiment: Experiment) -> dict[str, list[Any]]:
        if self._program is None:
            self._program = subprocess.Popen(
                [sys.executable, str(SUPPORT / "every_engine.py"), *self._names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=open(self._log, "w"),  # noqa: SIM115
                text=True,
            )
        print(json.dumps(experiment.to_json()), file=self._program.stdin, flush=True)
        if line := self._program.stdout.readline():
            return json.loads(line)
        self.close()
        raise AssertionError(self._log.read_text()[-3000:])

    def close(self) -> None:
        if self._program:
            self._program.stdin.close()
            self._program.wait(30)
            self._program = None


@contextmanager
def open_engines(*names: str) -> Iterator[Engines]:
    """All engines, or those of these names."""
    with tempfile.TemporaryDirectory() as folder:
        engines = Engines(Path(folder), names)
        try:
            yield engines
        finally:
            engines.close()


def check_alike(engines: Engines, experiment: Experiment) -> tuple[str, int]:
    """Check that all engines agree; return the digest, and how many engines took it."""
    found = engines.train(experiment)
    (alone,) = found["one process"]
    differ = [name for name, each in found.items() if each != [alone] * len(each)]
    assert not differ, found
    return alone[0], len(found)


@needs_kernels
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seed", "draws"),
    [
        pytest.param(SEED, 10, marks=pytest.mark.slow),
        pytest.param(SEED + 1, 50, marks=pytest.mark.long),
    ],
)
def test_any_experiment_gives_the_same_bits_with_every_engine(seed: int, draws: int) -> None:
    found = set[tuple[str, int]]()
    with open_engines() as engines:

        @seeded(seed)
        @settings(
            max_examples=draws,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(experiments())
        def check(experiment: Experiment) -> None:
            note("\n".join(Experiment().changes_to(experiment)))
            found.add(check_alike(engines, experiment))

        check()
    digests, counts = zip(*found, strict=True)
    assert max(counts) == 5
    assert len(set(digests)) > draws / 2, "what is compared can differ"


SMALL = Experiment(
    data=DATA, model=Model(depth=8, width=8), replicas=3, global_batch_size=12, steps=4
)
"""With a replica for each of three workers."""
SPECIAL = {
    "phases": replace(SMALL_SPEEDRUN, replicas=4, steps=12),
    "frozen layers": replace(
        SMALL, model=replace(SMALL.model, freeze=("stem..stage2",)), average=Average(0.9)
    ),
    "TensorFlow's kernels": replace(SMALL, kernels="tensorflow"),
    "bfloat16": replace(SMALL, precision="bfloat16"),
    "numbers from the data": replace(
        SMALL,
        augment=Augmentation(rand_augment=2, random_erasing=0.5, cutmix=1.0, mixup=0.2, hue=0.1),
        loss=Loss(class_weights="balanced"),
        scaling=Scaling(mean="auto"),
    ),
}


@needs_kernels
@pytest.mark.long
def test_what_is_not_drawn_gives_the_same_bits_with_every_engine() -> None:
    with open_engines() as engines:
        for name, experiment in SPECIAL.items():
            assert check_alike(engines, experiment)[1] == 5, name


@pytest.mark.slow
def test_recipes_of_older_systems_give_the_same_bits_on_parameter_servers() -> None:
    """With a small model on little data: how weights change is the recipe's."""
    with open_engines("one process", "parameter servers") as engines:
        for name in (
            *("estimator-resnet44", "official-resnet56", "ray-resnet32", "uai-resnet50"),
            *("imagenet-resnet50", "cifar10-resnet20", "cifar10-fast"),
        ):
            full = get_recipe(name)
            depth = 18 if full.model.layout == "imagenet" else 8
            experiment = replace(
                full,
                data=DATA,
                augment=replace(full.augment, crop_size=16),
                model=replace(full.model, depth=depth, width=8),
                sync=Sync(),
                early_stopping=EarlyStopping(),
                global_batch_size=8,
                replicas=2,
                steps=3,
            )
            digest, engines_used = check_alike(engines, experiment)
            assert (len(digest), engines_used) == (64, 2), name
