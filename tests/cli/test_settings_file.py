"""Settings in a file."""

from pathlib import Path

import pytest

from helpers import assert_refused
from in_process import paceline_here
from paceline.cli.parse import parse
from paceline.cli.train import Train
from paceline.errors import UserError
from paceline.experiment.optimizer import Group

TEXT = """
recipe = "cifar10-speedrun"
epochs = 5
workers = 2
lr = 0.5
[model]
norm_epsilon = 1e-6
[data]
dir = "here"
"""


def parsed(*arguments: str) -> Train:
    train: Train = parse(Train, "train", list(arguments[1:]), Train.of_recipe(arguments[0]))
    return train


def test_a_file_of_settings_is_a_recipe_that_flags_override(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text(TEXT)
    found = parsed(str(file), "--epochs", "6")
    flags = "--epochs 6 --workers 2 --schedule.rate 0.5 --model.norm-epsilon 1e-6 --data.dir here"
    wanted = parsed("cifar10-speedrun", *flags.split())
    assert (found.experiment, found.place, found.run) == (
        wanted.experiment,
        wanted.place,
        wanted.run,
    )
    assert found.recipe == "my"


def test_saved_settings_are_read_as_the_same_experiment(tmp_path: Path) -> None:
    flags = "--workers 2 --keep 5 --optimizer.nesterov --augment.sizes 16 --augment.size-epochs 1"
    group = "*/kernel rule=muon rate=0.5"
    command = ("train", "smoke", *flags.split(), "--optimizer.groups", group)
    ended = paceline_here(*command, "--save-config", "my.json", cwd=tmp_path)
    assert (ended.code, ended.out) == (0, "ready: paceline train my.json\n")
    assert [each.name for each in tmp_path.iterdir()] == ["my.json"], "nothing is trained"
    found, wanted = parsed(str(tmp_path / "my.json")), parsed(*command[1:])
    assert found.experiment == wanted.experiment
    assert found.experiment.optimizer.groups == (Group("*/kernel", rule="muon", rate=0.5),)
    assert (found.place, found.run) == (wanted.place, wanted.run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe = 3 3", "my.toml is not TOML"),
        ("epoch = 3", "unknown setting 'epoch'; did you mean 'epochs'"),
        ('recipe = "smok"', "unknown recipe 'smok'; did you mean 'smoke'"),
        ("workers = 0", "workers is 0"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "my.toml").write_text(text)
    ended = paceline_here("train", "my.toml", cwd=tmp_path)
    assert_refused(ended, message)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*nowhere\.toml"):
        parsed(str(tmp_path / "nowhere.toml"))
