"""Whether a run folder belongs to what is trained now."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.experiment.experiment import MOVABLE, Augmentation, Data, Experiment, Schedule
from paceline.kernels import library
from paceline.maths.state import State, StateLayout
from paceline.run_folder.checkpoint_file import RunIdentity
from paceline.run_folder.checkpoints import Checkpoints, identity_of
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.given_weights import newest_variables
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


@pytest.mark.parametrize("folder", ["/data", "/moved"])
def test_the_same_experiment_may_open_it_again(tmp_path: Path, folder: str) -> None:
    run = RunFolder(tmp_path / "run")
    run.open(replace(EXPERIMENT, data=Data("auto", dir="/data")), FACTS, code=CODE)
    again = replace(EXPERIMENT, data=Data("auto", dir=folder))
    assert run.open(again, FACTS, code=CODE) == []


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


def test_a_checkpoint_of_a_different_run_is_refused(tmp_path: Path) -> None:
    layout = StateLayout({"params": (("a", (3,)),)})
    state = State(7, {"params": np.ones(3, np.float32)})
    run, other = RunIdentity("11111111"), RunIdentity("22222222")
    path = Checkpoints(tmp_path, layout, identity=other).save(state)
    own = Checkpoints(tmp_path, layout, identity=run)
    for read in (own.latest, lambda: own.load(7), lambda: own.choose("best")):
        with pytest.raises(
            UserError, match=r"step-00000007\.safetensors belongs to a different run"
        ):
            read()
    with pytest.raises(UserError, match="belongs to a different run"):
        newest_variables(tmp_path, ("params",), run)
    assert path.exists()


def test_the_last_checkpoint_of_a_finished_run_is_the_one_that_its_result_names(
    tmp_path: Path,
) -> None:
    run = RunFolder(tmp_path / "run")
    run.open(EXPERIMENT, FACTS, code=CODE)
    layout = StateLayout({"params": (("a", (3,)),)})
    states = [State(7, {"params": np.full(3, value, np.float32)}) for value in (1.0, 2.0)]

    def save_and_read(state: State) -> State:
        Checkpoints(run.checkpoints, layout, identity=identity_of(run)).save(state)
        return Checkpoints(run.checkpoints, layout, identity=identity_of(run)).choose("last")

    result = {"step": 7, "state_sha256": states[0].sha256()}
    run.write_result(result | {"finished": False})
    for state in states:
        assert save_and_read(state).sha256() == state.sha256()
    run.write_result(result | {"finished": True})
    assert save_and_read(states[0]).step == 7
    with pytest.raises(UserError, match="belongs to a different run; remove it"):
        save_and_read(states[1])
    (run.path / "result.json").write_text("{")
    assert save_and_read(states[1]).step == 7, "a damaged result is computed again"


def test_data_that_moved_do_not_make_a_different_run(tmp_path: Path) -> None:
    first = replace(EXPERIMENT, data=Data("auto", dir="/first"))
    moved = replace(first, data=replace(first.data, dir="/moved"), kernels="own")
    assert first.digest(MOVABLE) == moved.digest(MOVABLE)
    assert first.digest(MOVABLE) != replace(first, seed=77).digest(MOVABLE)


def test_kernels_that_cannot_be_used_are_not_advised(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "kernels", lambda self: "own")
    for reason, advice in (("", "pass --kernels own"), ("no gcc", "own cannot be used: no gcc")):
        monkeypatch.setattr(library, "why_unavailable", lambda reason=reason: reason)
        with pytest.raises(UserError, match=f"gives different bits; .*{advice}, or use another"):
            run.open(EXPERIMENT, FACTS, "tensorflow", CODE)


@pytest.mark.parametrize(
    ("schedule", "extends"),
    [
        (Schedule("constant"), True),
        (Schedule("steps", boundaries=(1,), factors=(0.1,)), True),
        (Schedule("cosine"), False),
        (Schedule("constant", warmup="1/2"), False),
    ],
)
def test_a_run_may_be_extended_if_all_its_steps_stay_the_same(
    tmp_path: Path, schedule: Schedule, extends: bool
) -> None:
    run, old = RunFolder(tmp_path), Experiment(epochs=2, schedule=schedule)
    run.open(old, FACTS)
    run.write_result({"finished": True, "step": 782, "state_sha256": "aa"})
    longer, identity = replace(old, epochs=3), identity_of(run).experiment
    if extends:
        run.open(longer, FACTS)
        assert run.experiment() == longer
        assert run.read_result() == {"finished": False}
        assert identity_of(run) == RunIdentity(identity)
    else:
        with pytest.raises(UserError, match=rf"epochs: 2.0 -> 3.* --model.init-from {tmp_path}"):
            run.open(longer, FACTS)
    with pytest.raises(UserError, match="different experiment"):
        run.open(replace(old, epochs=1), FACTS)
