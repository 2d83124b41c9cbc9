"""`paceline search`: its plan, its folder, its table and its page, without Ray."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import paceline
from paceline.cli.commands import main
from paceline.errors import UserError
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.search import on_ray
from paceline.extras.search import run_search as run
from paceline.extras.search.options import Options, SearchPlan, Trial, build_search
from paceline.extras.search.space import parse_over
from paceline.extras.search.trials import SearchFolder
from paceline.job import Place
from paceline.run_folder.folder import RunFolder

SMOKE = replace(get_recipe("smoke"), data=replace(get_recipe("smoke").data, validation=48))
OVER = ("schedule.rate=0.01..0.5:log", "optimizer.weight-decay=1e-4,5e-4")


def search_of(where: Path, **options: Any) -> SearchPlan:
    space = parse_over(OVER, SMOKE)
    options = {"trials": 4, "search_dir": str(where), **options}
    return build_search("smoke", SMOKE, space, Place(), Options(**options))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "over is empty; give the settings to search, such as schedule.rate=0.05..0.8:log"),
        ("schedule.rate", "over is 'schedule.rate'; it must be NAME=VALUES, such as"),
        ("schedule.rte=1,2", "unknown setting 'schedule.rte'; did you mean 'schedule.rate'?"),
        ("lr=0.1,0.2", "unknown setting 'lr'; did you mean 'schedule.rate'?"),
        ("workers=1,2", "unknown setting 'workers'"),
        ("scaling.mean=1,2", "over has scaling.mean, which has several values at once"),
        ("schedule.rate=0..1:log", "after a range there can be :log, if it begins above 0"),
        ("schedule.rate=0.5..0.1", "the first number must be below the second"),
        ("schedule.rate=a..b", "over has schedule.rate=a..b; its values must be floats"),
        ("schedule.rate=1..2:ln", "after a range there can be :log"),
        ("schedule.rate=0.1,,0.2", "over has schedule.rate=0.1,,0.2; its values must be floats"),
        ("schedule.rate=0.1,nan --trials 2", "schedule.rate is nan; it must be a finite number"),
        ("seed=1,1.5 --trials 2", "seed is 1.5; it must be a whole number"),
        ("augment.flip=yes", "over has augment.flip=yes; its values must be bools"),
        ("schedule.name=a..b", "but it is not a number; list its values, as schedule.name=A,B,C"),
        ("seed=1 seed=2", "over has seed twice; give all its values at once"),
        ("schedule.rate=-1..1", "; it must be 0 or more"),
        ("seed=1,2 --trials 3", "trials is 3, but over has only 2 different combinations"),
        ("schedule.rate=1,2 --trials -1", "trials is -1; it must be 0 to 10,000"),
        ("seed=1,2 --on spark", "on is 'spark'; a search always runs on Ray"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_made(
    words: str, message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["search", "smoke", "--data.validation", "48", "--over", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_a_validation_split_a_line_says_what_to_do(capsys: Any) -> None:
    assert main(["search", "smoke", "--over", "seed=1,2", "--trials", "2"]) == 2
    assert "pass --data.validation N to hold out N training examples" in capsys.readouterr().err


def test_without_ray_a_line_says_what_to_install(tmp_path: Path) -> None:
    with (
        mock.patch.object(run, "find_spec", return_value=None),
        pytest.raises(UserError, match=r"pip install 'paceline\[ray\]'"),
    ):
        run.run_search(search_of(tmp_path / "search"), print)


def test_a_dry_run_shows_the_settings_of_all_trials(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--data.validation", "48", "--trials", "4", "--dry-run", "--over", *OVER]
    assert main(["search", "smoke", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"4 trials in searches/smoke-[0-9a-f]{8}", lines[0])
    assert lines[1] == "trial 1  schedule.rate=0.3857  optimizer.weight-decay=0.0005"
    assert len(lines) == 5
    assert not list(tmp_path.iterdir())


def make_trial(trial: Trial, accuracies: tuple[float, ...], finished: bool = True) -> None:
    """Write a run as a training leaves it, with these evaluations of 3."""
    folder = RunFolder(trial.job.run.run_dir)
    folder.open(trial.job.experiment, {"train": 224, "test": 131, "classes": ["a", "b"]})
    for number, accuracy in enumerate(accuracies, 1):
        folder.metrics.append(
            {"step": 7 * number, "epoch": float(number), "loss": 1.0, "accuracy": 0.5}
            | {"validation_accuracy": accuracy, "validation_loss": 1 - accuracy}
        )
    if finished:
        folder.write_result({"step": 21, "finished": True, "state_sha256": "5" * 64})


@pytest.fixture
def made(tmp_path: Path) -> SearchPlan:
    """A search with a finished, a stopped, a failed and a waiting trial."""
    plan = search_of(tmp_path / "search")
    folder = SearchFolder(plan)
    with folder.opened():
        make_trial(plan.trials[0], (0.5, 0.7, 0.6))
        make_trial(plan.trials[1], (0.9,), finished=False)
        make_trial(plan.trials[2], (), finished=False)
        folder.stopped[plan.trials[1].name] = 7
        folder.failed[plan.trials[2].name] = "the loss of step 3 is <nan>: it has diverged"
        folder.save()
    return plan


def run_made(plan: SearchPlan, said: list[str]) -> run.SearchResult:
    with mock.patch.object(on_ray, "run_trials", return_value=[]):
        return run.run_search(plan, said.append)


def test_trials_are_ranked_by_the_validation_split_finished_ones_first(made: SearchPlan) -> None:
    said: list[str] = []
    result = run_made(made, said)
    assert said == [f"3 of 4 trials in {made.where} are done already"]
    assert [(each.number, each.state, each.accuracy) for each in result.trials] == [
        (1, "finished", 0.7),
        (2, "stopped", 0.9),
        (3, "failed", None),
        (4, "waiting", None),
    ]
    best = result.best
    assert best is not None
    assert (best.loss, best.epochs, best.state_sha256) == (pytest.approx(0.3), 3.0, "5" * 64)
    assert best.command == (
        "paceline train smoke --data.validation 48 "
        "--optimizer.weight-decay 0.0005 --schedule.rate 0.3857"
    )


def test_the_table_and_the_page_show_the_trials_and_the_best_one(
    made: SearchPlan, capsys: Any
) -> None:
    flags = ["--data.validation", "48", "--trials", "4", "--search-dir", made.where, "--json"]
    with mock.patch.object(on_ray, "run_trials", return_value=[]):
        assert main(["search", "smoke", *flags, "--over", *OVER]) == 0
    out = capsys.readouterr().out.splitlines()
    table = [line.split() for line in out if re.match(r"\d  ", line)]
    assert [row[0] for row in table] == ["1", "2", "3", "4"]
    numbers = ["0.3857", "0.0005", "0.7000", "0.3000", "3", "finished"]
    assert table[0][1:] == [*numbers, "555555555555", made.trials[0].name]
    where = f"step 14, checkpoint best of {made.trials[0].job.run.run_dir}"
    assert f"best: trial 1, validation accuracy 0.7000 ({where})" in out
    assert "with 48 validation images, chance changes an accuracy by 0.144" in out
    states = [trial["state"] for trial in json.loads(out[-1])["trials"]]
    assert states == ["finished", "stopped", "failed", "waiting"]
    page = Path(made.where, "search.html").read_text()
    for text in ("2 runs", "Settings that differ", made.trials[0].name, made.trials[1].name):
        assert text in page


def test_a_folder_of_another_search_or_of_somebody_else_is_left_alone(
    made: SearchPlan, tmp_path: Path
) -> None:
    other = replace(made, facts=made.facts | {"experiment": replace(SMOKE, epochs=9.0).to_json()})
    with pytest.raises(UserError, match=r"different search: experiment.epochs: 3.0 -> 9.0"):
        run_made(other, [])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(UserError, match="is not a search folder"):
        run_made(search_of(tmp_path / "mine"), [])


def test_python_takes_settings_by_name(tmp_path: Path) -> None:
    with mock.patch.object(run, "run_search") as run_search:
        paceline.search(
            "smoke",
            over={"schedule.rate": "0.01..0.5:log", "optimizer.weight_decay": [1e-4, 5e-4]},
            data={"validation": 48},
            workers=2,
            trials=4,
            search_dir=str(tmp_path / "search"),
        )
    plan = run_search.call_args.args[0]
    assert [trial.settings for trial in plan.trials] == [
        trial.settings for trial in search_of(tmp_path / "search").trials
    ]
    assert plan.trials[0].job.place == Place(on="local", workers=2, cores=1)
    with pytest.raises(UserError, match="unknown setting 'trial'; did you mean 'trials'"):
        paceline.search("smoke", over={"seed": [1, 2]}, trial=3)
