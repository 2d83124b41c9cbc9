"""`paceline report`: the numbers of the page, its texts, and the command."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import paceline, result_of
from paceline.cli.commands import main
from paceline.experiment.experiment import Schedule
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.report.run_data import read_run
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import unsealed
from report_runs import EVIL, make_run, report


def test_the_report_of_a_real_run_has_its_numbers(uninterrupted: Path, tmp_path: Path) -> None:
    ended = paceline("report", str(uninterrupted), "-o", "page.html", cwd=tmp_path)
    assert (ended.code, ended.out) == (0, "ready: page.html\n"), ended.err
    page, result = (tmp_path / "page.html").read_text(), result_of(uninterrupted)
    assert f"{100 * result['test_accuracy']:.2f} %" in page
    assert result["state_sha256"] in page
    right = round(131 * result["test_accuracy"])
    assert f"{right} of 131 test images are correct, {131 - right} are wrong" in page
    assert page.count('<img src="data:image/png;base64,') == 24
    assert "1 worker" in page
    assert "schedule.rate" in page


def test_training_stores_its_prediction_of_every_test_image(uninterrupted: Path) -> None:
    """The worst mistakes are those with the highest probability; images of the test set."""
    data = read_run(RunFolder(uninterrupted))
    assert data.evaluation is not None
    examples, worst = data.evaluation.examples, data.evaluation.worst
    assert (data.evaluation.step, data.evaluation.split, len(examples.labels)) == (24, "test", 131)
    assert np.mean(examples.labels == examples.predictions) == pytest.approx(
        result_of(uninterrupted)["test_accuracy"]
    )
    assert np.array_equal(examples.confusion(10).sum(1), np.bincount(examples.labels, minlength=10))
    assert (examples.labels[worst] != examples.predictions[worst]).all()
    sure = examples.probabilities[worst]
    assert (np.diff(sure) <= 0).all()
    wrong = examples.probabilities[examples.labels != examples.predictions]
    assert sure[-1] >= np.sort(wrong)[-24]
    assert data.evaluation.images.shape == (24, 32, 32, 3)
    assert ((examples.probabilities > 0) & (examples.probabilities <= 1)).all()


def test_starts_and_events_are_shown_with_their_time(tmp_path: Path) -> None:
    run, event = make_run(tmp_path / "run"), "worker 1 is lost; 3 are left"
    RunFolder(run).metrics.append(
        {"step": 940, "epoch": 6.1, "staleness_mean": 1.5, "events": [event]}
    )
    found = read_run(RunFolder(run)).events()
    assert [(step, text) for step, _, text in found] == [
        (0, "started with 1 worker"),
        (500, "started with 2 workers"),
        (940, event),
    ]
    assert found[0][1] == 0 < found[1][1] < found[2][1]
    page = report(run, out=tmp_path / "page.html")
    assert "step 500 (" in page
    assert "Mean staleness" in page
    assert page.count(event) == 2  # in the list, and at its line of the chart


def test_runs_are_compared_and_named_by_letters(tmp_path: Path) -> None:
    fast = replace(get_recipe("shapes"), schedule=Schedule(rate=0.7))
    make_run(tmp_path / "b", fast, seed=1)
    runs = [make_run(tmp_path / "a"), tmp_path / "b", make_run(tmp_path / "c")]
    page = report(*runs, out=tmp_path / "page.html")
    different = page.partition("Settings that differ")[2].partition("<details>")[0]
    names = ["schedule.name", "schedule.rate", "schedule.warmup"]
    assert re.findall(r'scope="row">([^<]+)', different) == names
    assert "0.7" in different
    assert "A and C ended with the same bits" in page


def test_names_events_and_errors_are_text_and_nothing_else(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", classes=(EVIL, 'x" onclick="y', "bird"))
    RunFolder(run).write_result({"step": 9, "finished": False, "error": EVIL, "state_sha256": EVIL})
    RunFolder(run).metrics.append({"step": 940, "images_per_second": 400.0, "events": [EVIL]})
    page = report(run, out=tmp_path / "page.html")
    tags = list[tuple[str, dict[str, str | None]]]()

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append((tag, dict(attrs)))

    Parser().feed(page)
    assert "script" not in {tag for tag, _ in tags}
    sources = [str(attributes["src"]) for tag, attributes in tags if tag == "img"]
    assert all(source.startswith("data:image/") for source in sources)
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    assert page.count("&lt;script&gt;") > 5


def test_of_many_classes_only_the_most_frequent_mistakes_are_listed(tmp_path: Path) -> None:
    classes = tuple(f"class {i}" for i in range(100))
    run = make_run(tmp_path / "run", classes=classes, examples=5000)
    page = report(run, out=tmp_path / "page.html")
    assert 'class="matrix"' not in page
    assert page.count("<tr><td>class ") == 10


def test_what_a_run_does_not_know_is_left_out_with_a_note(tmp_path: Path) -> None:
    """A run without stored predictions, one that just began, one with more outputs than names."""
    old, new, odd = make_run(tmp_path / "old"), tmp_path / "new", make_run(tmp_path / "odd")
    (old / "evaluation.npz").unlink()
    (old / "starts.jsonl").unlink()
    RunFolder(new).open(get_recipe("shapes"), {"train": 20_000, "test": 4_000, "classes": []})
    config = unsealed(json.loads((odd / "config.json").read_text()))
    facts = {"data": {"train": 20_000, "classes": ["one"]}}
    (odd / "config.json").write_text(json.dumps(config | facts))
    page = report(new, out=tmp_path / "page.html")
    assert "Nothing measured yet" in page
    assert "step 0 of 936" in page
    assert "this command continues it: paceline train" in page
    page = report(old, new, odd, out=tmp_path / "page.html", force=True)
    assert page.count("No predictions of single images") == 2


def test_a_damaged_evaluation_or_result_does_not_hide_the_rest(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "evaluation.npz").write_bytes((run / "evaluation.npz").read_bytes()[:500])
    (run / "result.json").write_text("{")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 99')
    page = report(run, out=tmp_path / "page.html")
    assert "No predictions of single images" in page
    assert "result.json is damaged" in page


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["report", *arguments])
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return code, err


def test_a_page_that_exists_is_kept_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = make_run(tmp_path / "run"), tmp_path / "page.html"
    page.write_text("mine")
    code, err = one_line(capsys, str(run), "-o", str(page))
    assert (code, page.read_text()) == (2, "mine")
    assert "exists; pass --force" in err
    assert main(["report", str(run), "-o", str(page), "--force"]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]


@pytest.mark.parametrize(
    "problem", ["damaged", "newer", "missing", "unknown field", "no experiment"]
)
def test_a_run_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], problem: str
) -> None:
    good, bad = make_run(tmp_path / "good"), make_run(tmp_path / "bad")
    config = unsealed(json.loads((bad / "config.json").read_text()))
    texts: dict[str, Any] = {
        "damaged": '{"format": 1, "exper',
        "newer": json.dumps(config | {"format": 99}),
        "unknown field": json.dumps(config | {"experiment": {"warp": 9}}),
        "no experiment": "[]",
    }
    if problem == "missing":
        shutil.rmtree(bad)
    else:
        (bad / "config.json").write_text(texts[problem])
    code, err = one_line(capsys, str(bad), "-o", str(tmp_path / "alone.html"))
    assert (code, "bad" in err, (tmp_path / "alone.html").exists()) == (2, True, False)
    code, err = one_line(capsys, str(bad), str(good), "-o", str(tmp_path / "both.html"))
    assert (code, "left out" in err and "bad" in err) == (1, True)
    assert "Left out: " in (tmp_path / "both.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "RUN is missing"),
        (["RUN", "-o", "nowhere/page.html"], "cannot write"),
        (["RUN", "-o", ".", "--force"], "is a folder"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "RUN")
    code, err = one_line(capsys, *arguments)
    assert (code, said in err) == (2, True), err


def test_a_single_run_shows_its_command_and_what_differs_from_its_recipe(tmp_path: Path) -> None:
    changed = replace(get_recipe("shapes"), epochs=9)
    run = make_run(tmp_path / f"shapes-{changed.digest()}", changed)
    page = report(run, out=tmp_path / "page.html")
    assert "<code>paceline train shapes --epochs 9" in page
    shown = page[page.index("differs from the recipe shapes") : page.index("<summary>All")]
    assert "epochs" in shown
    assert "schedule" not in shown


def test_a_run_that_trains_on_shows_no_digest_or_speed_of_an_earlier_attempt(
    tmp_path: Path,
) -> None:
    folder = RunFolder(make_run(tmp_path / "run"))
    result = {"finished": False, "step": 900, "state_sha256": "0ld", "images_per_second": 5.0}
    folder.write_result(result)
    folder.metrics.append({"step": 960, "epoch": 7.0, "images_per_second": 77.0})
    found = read_run(folder)
    assert (found.digest, found.step, found.last("images_per_second")) == ("", 960, 77.0)
