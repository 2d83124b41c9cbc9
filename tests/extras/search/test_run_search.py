"""`paceline search`: its plan, its folder, its table and its page, without Ray."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import paceline
from browser import Browser, needs_browser
from paceline.cli.commands import main
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.search import driver
from paceline.extras.search import run_search as run
from paceline.extras.search.options import Options, SearchPlan, Trial, build_search
from paceline.extras.search.search_folder import SearchFolder
from paceline.extras.search.space import build_space, parse_over
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
        ("workers=1,2", "over has workers, which does not change the numbers"),
        ("scaling.mean=1,2", "over has scaling.mean, which has several values at once"),
        ("schedule.rate=0..1:log", "a range with :log must begin above 0"),
        ("schedule.rate=0.5..0.1", "the first number must be below the second"),
        ("schedule.rate=a..b", "over has 'a' for schedule.rate; it must be a number"),
        ("schedule.rate=1..2:ln", "after the range there can only be :log"),
        ("schedule.rate=0.1,,0.2", "give values with commas between"),
        ("schedule.rate=0.1,nan", "over has 'nan' for schedule.rate; it must be a finite number"),
        ("seed=1,1.5", "over has '1.5' for seed; it must be an integer"),
        ("augment.flip=yes", "over has 'yes' for augment.flip; it must be true or false"),
        ("schedule.name=a..b", "but it is not a number; list its values, as schedule.name=A,B,C"),
        ("seed=1 seed=2", "over has seed twice; give all its values at once"),
        ("schedule.rate=-1..1", "; it must be 0 or more"),
        ("seed=1,2", "trials is 16, but over has only 2 different combinations"),
        ("schedule.rate=1,2 --trials -1", "trials is -1; it must be from 1 to 10,000"),
        ("schedule.rate=1,2 --grace 0", "grace is 0.0; it must be a fraction above 0, at most 1"),
        ("schedule.rate=1,2 --reduction 1", "reduction is 1.0; it must be above 1"),
        ("seed=1..3 --method grid", "over has a range for seed, which a grid cannot try"),
        ("seed=1,2 --method grid --trials 3", "the grid has 2 combinations, and all are tried"),
        ("seed=1,2 --on spark", "on is 'spark'; a search runs on Ray"),
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
    error = capsys.readouterr().err
    assert "on a validation split, never on the test set, and there is none" in error
    assert "give --data.validation N to hold out N training examples" in error


def test_without_ray_tune_a_line_says_what_to_install(tmp_path: Path) -> None:
    def find_spec(name: str) -> object:
        return None if name == "pandas" else object()

    plan = search_of(tmp_path / "search")
    with (
        mock.patch.object(run, "find_spec", find_spec),
        pytest.raises(UserError, match=r"pandas is not .* pip install 'paceline\[search\]'"),
    ):
        run.run_search(plan, print)


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
    folder = RunFolder(trial.run_dir)
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
    with mock.patch.object(driver, "run_trials", return_value=[]):
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


def test_the_table_and_the_page_show_every_trial_and_the_command_of_the_best(
    made: SearchPlan, monkeypatch: Any, capsys: Any
) -> None:
    flags = ["--data.validation", "48", "--trials", "4", "--search-dir", made.where, "--json"]
    with mock.patch.object(driver, "run_trials", return_value=[]):
        assert main(["search", "smoke", *flags, "--over", *OVER]) == 0
    out = capsys.readouterr().out.splitlines()
    table = [line.split() for line in out if re.match(r"\d  ", line)]
    assert [row[0] for row in table] == ["1", "2", "3", "4"]
    assert table[0][1:] == [
        *("0.3857", "0.0005", "0.7000", "0.3000", "3", "finished"),
        *("555555555555", made.trials[0].name),
    ]
    assert "best: trial 1, validation accuracy 0.7000" in out
    values = json.loads(out[-1])
    assert [trial["state"] for trial in values["trials"]] == [
        *("finished", "stopped", "failed", "waiting")
    ]
    page = Path(made.where, "search.html").read_text()
    for text in ("70.00 %", "Paceline search", made.trials[3].name, values["trials"][0]["command"]):
        assert text in page
    assert "is &lt;nan&gt;: it has diverged" in page  # escaped
    assert "default-src 'none'" in page
    assert page.count("<svg viewBox") >= 4  # a chart for each setting, and two of curves


@needs_browser
def test_the_page_fits_a_phone_and_asks_no_one(made: SearchPlan, tmp_path: Path) -> None:
    page = Path(run_made(made, []).page)
    with Browser(tmp_path / "chromium") as browser:
        for width in (390, 1280):
            shown = browser.open(page, width)
            assert shown.evaluate("document.documentElement.scrollWidth") == width
            assert (shown.requests, shown.errors) == ([], [])


def test_a_folder_of_another_search_or_of_somebody_else_is_left_alone(
    made: SearchPlan, tmp_path: Path
) -> None:
    other = replace(made, experiment=replace(SMOKE, epochs=9.0))
    with pytest.raises(UserError, match=r"different search: experiment.epochs: 3.0 -> 9.0"):
        run_made(other, [])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(UserError, match="is not a search folder"):
        run_made(search_of(tmp_path / "mine"), [])


def test_only_a_search_with_a_scheduler_leaves_stopped_trials_alone(made: SearchPlan) -> None:
    for scheduler, left in (("asha", [4]), ("none", [2, 4])):
        plan = replace(made, options=replace(made.options, scheduler=scheduler))
        with mock.patch.object(driver, "run_trials", return_value=[]) as run_trials:
            run.run_search(plan, lambda line: None)
        assert [trial.number for trial in run_trials.call_args.args[1]] == left


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


def test_an_experiment_without_a_recipe_is_searched_by_the_nearest_recipes_command() -> None:
    space = build_space({"seed": [1, 2]}, SMOKE)
    experiment = Experiment(data=SMOKE.data)
    plan = build_search("own", experiment, space, Place(), Options(trials=2))
    assert plan.trials[0].run_dir.startswith("searches/own-")
    assert Path(plan.trials[0].run_dir).name.startswith("own-")
