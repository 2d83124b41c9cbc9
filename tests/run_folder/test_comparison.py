"""Whether a run folder belongs to what is trained now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Data, Experiment
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import unsealed
from paceline.versions import library_versions

EXPERIMENT = Experiment(seed=3)
FACTS = {"train": 50000, "test": 10000, "content": "aa"}
CODE = {"model.build": "11"}
MANY = Experiment(
    seed=4, epochs=2, replicas=4, global_batch_size=64, threads_per_replica=2, steps=9
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.open(EXPERIMENT, FACTS, code=CODE)
    return folder


@pytest.mark.parametrize("experiment", [EXPERIMENT, Experiment(seed=3, data=Data(dir="/moved"))])
def test_the_same_experiment_may_open_it_again(run: RunFolder, experiment: Experiment) -> None:
    assert run.open(experiment, FACTS, code=CODE) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"experiment": Experiment(seed=4, augment=Augmentation(flip=True))},
            "augment.flip: False -> True, seed: 3 -> 4",
        ),
        ({"experiment": MANY}, "and 1 more"),
        ({"data_facts": FACTS | {"train": 4}}, "the data is not the same: train 50000 -> 4"),
        ({"data_facts": FACTS | {"content": "b"}}, "the data is not the same: content 'aa' -> 'b'"),
        ({"code": {"model.build": "22"}}, "the code of model.build is not the same"),
        ({"kernels": "own"}, "was trained with --kernels tensorflow"),
    ],
)
def test_something_else_is_refused_with_what_differs(
    run: RunFolder, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        run.open(**{"experiment": EXPERIMENT, "data_facts": FACTS, "code": CODE} | changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_changed_libraries_are_returned(run: RunFolder) -> None:
    config = unsealed(json.loads((run.path / "config.json").read_text()))
    config["versions"]["keras"] = "2.0"
    (run.path / "config.json").write_text(json.dumps(config))
    changed = [f"keras: '2.0' -> {library_versions()['keras']!r}"]
    assert run.open(EXPERIMENT, FACTS, code=CODE) == changed
