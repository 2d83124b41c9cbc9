"""The report: one page that stands alone, right in its numbers, and good to look at on any screen. Looked at with a real browser."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import Browser, Page, needs_browser
from helpers import paceline, result_of
from paceline.cli.commands import main
from paceline.config.experiment import Experiment, Schedule
from paceline.config.recipes import get_recipe
from paceline.errors import UserError
from paceline.results.report import write_report
from paceline.results.report.charts import Chart, Drawing, Line, log_ticks, nice_ticks, thin
from paceline.results.report.formats import letter
from paceline.results.report.run_data import read_run
from paceline.run_folder.folder import RunFolder

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
SCREENS = [(390, False), (390, True), (1280, False), (1280, True)]


def make_run(
    path: Path,
    experiment: Experiment | None = None,
    records: int = 60,
    classes: tuple[str, ...] = ("cat", "dog", "bird"),
    side: int = 32,
    examples: int = 200,
    seed: int = 0,
) -> Path:
    """A run folder as a training leaves it, with made-up numbers: written by the same functions."""
    random, run = np.random.default_rng(seed), RunFolder(path)
    experiment = experiment or replace(get_recipe("shapes"), seed=seed)
    run.open(experiment, {"train": 20_000, "test": examples, "classes": list(classes)})
    steps, lines = [936 * (i + 1) // records for i in range(records)], list[str]()
    run.append_start(0, "local", 1)
    for i, step in enumerate(steps):
        record = {
            "step": step,
            "epoch": step / 156,
            "loss": 3.0 * 0.5 ** (step / 156) + random.uniform(0, 0.05),
        }
        record |= {
            "accuracy": 1 - 0.9 * 0.5 ** (step / 156),
            "learning_rate": 0.1,
            "images_per_second": random.uniform(400, 500),
        }
        if i % max(1, records // 6) == 0 or step == 936:
            record |= {
                "test_loss": record["loss"] * 1.1,
                "test_accuracy": record["accuracy"] * 0.97,
            }
        lines.append(json.dumps(record) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines))
    run.append_start(500, "local", 2)
    labels = random.integers(0, len(classes), examples)
    predictions = np.where(
        random.random(examples) < 0.7, labels, random.integers(0, len(classes), examples)
    )
    worst = np.flatnonzero(labels != predictions)[:24]
    pictures = random.integers(0, 256, (len(worst), side, side, 3), dtype=np.uint8)
    run.predictions.write(
        {
            "step": 936,
            "split": "test",
            "labels": labels,
            "predictions": predictions,
            "worst": worst,
            "pictures": pictures,
        }
        | {"probabilities": random.random(examples).astype(np.float32)}
    )
    run.write_result(
        {
            "step": 936,
            "finished": True,
            "test_accuracy": 0.91,
            "test_loss": 0.3,
            "images_per_second": 450.0,
        }
        | {"state_sha256": f"{seed:064x}"}
    )
    return path


def report(*runs: Path, out: Path, force: bool = False) -> str:
    assert write_report([str(run) for run in runs], out, force) == []
    return out.read_text()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


# ---------------------------------------------------------------------------------------------------- what the page says


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


def test_a_training_keeps_what_its_model_said_of_every_test_picture(uninterrupted: Path) -> None:
    """And the worst mistakes are those of which it was most sure; their pictures are the test set's own."""
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
    assert (
        sure[-1]
        >= np.partition(examples.probabilities[examples.labels != examples.predictions], -24)[-24]
    )
    assert data.evaluation.images.shape == (24, 32, 32, 3)
    assert ((examples.probabilities > 0) & (examples.probabilities <= 1)).all()


def test_starts_are_noted_with_their_workers(stopped_at_5: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(stopped_at_5, tmp_path / "run"))
    assert (
        paceline(
            "train",
            "smoke",
            "--run-dir",
            str(run),
            "--workers",
            "2",
            "--stop-at",
            "6",
            cwd=tmp_path,
        ).code
        == 0
    )
    starts = read_run(RunFolder(run)).starts()
    assert [(start.step, start.workers, start.tries) for start in starts] == [(0, 1, 1), (5, 2, 1)]
    assert starts[0].minute == 0 < starts[1].minute
    page = report(run, out=tmp_path / "page.html")
    assert "Started with 1 worker, again at step 5" in page
    assert "unfinished: step 6 of 24" in page


def test_what_an_engine_told_and_stale_gradients_are_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    RunFolder(run).metrics.append(
        {
            "step": 940,
            "epoch": 6.1,
            "images_per_second": 400.0,
            "staleness_mean": 1.5,
            "events": ["worker 1 is lost; 3 are left"],
        }
    )
    page = report(run, out=tmp_path / "page.html")
    assert "step 940 (4 min" in page
    assert "worker 1 is lost; 3 are…" in page
    assert "Mean staleness" in page


def test_runs_are_compared_and_named_by_letters(tmp_path: Path) -> None:
    fast = replace(get_recipe("shapes"), schedule=Schedule(rate=0.7))
    runs = [
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", fast, seed=1),
        make_run(tmp_path / "c"),
    ]
    page = report(*runs, out=tmp_path / "page.html")
    different = page[
        page.index("Settings that differ") : page.index(
            "<details>", page.index("Settings that differ")
        )
    ]
    assert re.findall(r'scope="row">([^<]+)', different) == [
        "schedule.name",
        "schedule.rate",
        "schedule.warmup",
    ]
    assert "0.7" in different
    assert "A and C ended with the same bits" in page


def test_names_events_and_errors_are_text_and_nothing_else(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", classes=(EVIL, 'x" onclick="y', "bird"))
    RunFolder(run).write_result({"step": 9, "finished": False, "error": EVIL, "state_sha256": EVIL})
    RunFolder(run).metrics.append({"step": 940, "images_per_second": 400.0, "events": [EVIL]})
    page = report(run, out=tmp_path / "page.html")
    tags = list[tuple[str, dict[str, str | None]]]()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(page)
    assert "script" not in {tag for tag, _ in tags}
    assert all(
        str(attributes["src"]).startswith("data:image/") for tag, attributes in tags if tag == "img"
    )
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    assert page.count("&lt;script&gt;") > 5


def test_many_classes_become_a_picture_with_the_most_frequent_mistakes(tmp_path: Path) -> None:
    classes = tuple(f"class {i}" for i in range(100))
    page = report(
        make_run(tmp_path / "run", classes=classes, examples=5000), out=tmp_path / "page.html"
    )
    assert "Confusion matrix of 100 classes" in page
    assert 'class="matrix"' not in page
    assert page.count("<tr><td>class ") == 10


def test_what_a_run_does_not_know_is_left_out_with_a_note(tmp_path: Path) -> None:
    """A run of an older version, one that has just begun, and one with more outputs than class names."""
    old, new, odd = (
        make_run(tmp_path / "old"),
        tmp_path / "new",
        make_run(tmp_path / "odd", classes=("one", "two")),
    )
    (old / "evaluation.npz").unlink()
    (old / "starts.jsonl").unlink()
    RunFolder(new).open(get_recipe("shapes"), {"train": 20_000, "test": 4_000, "classes": []})
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(
        json.dumps(config | {"data": {"train": 20_000, "classes": ["one"]}})
    )
    page = report(old, out=tmp_path / "page.html")
    assert "No predictions of single images" in page
    assert "does not say when training started" in page
    page = report(new, out=tmp_path / "page.html", force=True)
    assert "Nothing measured yet" in page
    assert "step 0 of 936" in page
    assert "A, B: No predictions of single images" in report(
        old, new, odd, out=tmp_path / "page.html", force=True
    )


def test_a_damaged_evaluation_or_result_does_not_hide_the_rest(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "evaluation.npz").write_bytes((run / "evaluation.npz").read_bytes()[:500])
    (run / "result.json").write_text("{")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 99')
    page = report(run, out=tmp_path / "page.html")
    assert "No predictions of single images" in page
    assert "result.json is damaged" in page


# -------------------------------------------------------------------------------------------------------------- the command


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
    assert "exists; give --force" in err
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
    config = json.loads((bad / "config.json").read_text())
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
        ([], "which run?"),
        (["RUN", "-o", "nowhere/page.html"], "cannot write"),
        (["RUN", "-o", "."], "is a folder"),
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


def test_ten_long_runs_take_less_than_ten_seconds_and_three_megabytes(tmp_path: Path) -> None:
    """Twenty thousand records each, which is a day of training, and large noisy pictures."""
    runs = [
        make_run(tmp_path / f"run-{i}", records=20_000, side=96, seed=i, examples=2000)
        for i in range(10)
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = paceline("report", *map(str, runs), "-o", "page.html", cwd=tmp_path)
    assert ended.code == 0, ended.err
    after = resource.getrusage(
        resource.RUSAGE_CHILDREN
    )  # the processor's time, so that a busy machine does not matter
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
    assert (tmp_path / "page.html").stat().st_size < 3_000_000


# ------------------------------------------------------------------------------------------------------------------- charts


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_are_few_and_hold_the_range(low: float, size: float) -> None:
    ticks = nice_ticks(low, low + size)
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= low + 1e-6 * (1 + abs(low) + size)
    assert ticks[-1] >= low + size - 1e-6 * (1 + abs(low) + size)


@given(st.floats(1e-8, 1e6), st.floats(1, 1e12))
def test_logarithmic_ticks_are_few_and_hold_the_range(low: float, times: float) -> None:
    ticks = log_ticks(low, low * times)
    assert 2 <= len(ticks) <= 24
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= low * 1.01
    assert ticks[-1] >= low * times * 0.99


@given(st.lists(st.floats(-100, 100), max_size=2000))
def test_thinned_curves_fit_a_screen_and_end_where_they_end(values: list[float]) -> None:
    points = [(float(i), value) for i, value in enumerate(values)]
    thinned = thin(points)
    assert len(thinned) <= 240
    assert thinned[-1:] == points[-1:]
    assert [x for x, _ in thinned] == sorted(x for x, _ in thinned)
    if values:
        assert (
            min(values) - 1e-9
            <= min(y for _, y in thinned)
            <= max(y for _, y in thinned)
            <= max(values) + 1e-9
        )


def test_curves_are_told_apart_without_their_colours(tmp_path: Path) -> None:
    """Each has its name at its end; eight have different dashes, sixteen different marks, too."""
    runs = [make_run(tmp_path / f"run-{i}", records=2, seed=i) for i in range(16)]
    page = report(*runs, out=tmp_path / "page.html")
    figure = page[page.index("<figure") : page.index("</figure>") + len("</figure>")]
    svg = ElementTree.fromstring(figure)
    names = [text.text for text in svg.iter("text") if "name" in text.get("class", "")]
    assert sorted(map(str, names)) == sorted(letter(i, 16) for i in range(16))
    paths = [(path, path.get("class", "")) for path in svg.iter("path")]
    dashes = [path.get("stroke-dasharray") for path, kind in paths if "line" in kind]
    assert len(set(dashes[:8])) == 8
    marks = [(path.get("d"), "filled" in kind) for path, kind in paths if "mark" in kind][::2]
    assert len(set(zip(dashes, marks, strict=True))) == 16


def test_names_at_the_ends_do_not_overlap() -> None:
    lines = [Line(letter(i, 10), [(0.0, 1.0), (1.0, 1.0 + i / 1000)], i) for i in range(10)]
    drawing = Drawing(Chart("Loss", lines, "epoch", str, from_zero=True))
    heights = sorted(y for _, y, _ in drawing.names())
    assert len(heights) == 10
    assert min(np.diff(heights)) > 9


def test_a_curve_of_one_point_or_with_gaps_is_drawn() -> None:
    line = Line("train", [(0.0, float("nan")), (1.0, 2.0)], 0)
    drawing = Drawing(Chart("Loss", [line], "epoch", str, log=True))
    assert "train: from 2.0 to 2.0" in drawing.description()
    ((_, path, _),) = drawing.lines
    assert "nan" not in path


# -------------------------------------------------------------------------------------------------------- in a real browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, uninterrupted: Path) -> dict[str, Path]:
    """The page of a real run, and one of many runs with names that no one would choose."""
    folder = tmp_path_factory.mktemp("pages")
    long = (
        "a class with a rather long name of several words",
        "Donaudampfschifffahrtsgesellschaft" * 2,
        EVIL,
    )
    runs = [
        make_run(folder / f"{'very-' * 12}long-name-{i}", seed=i, classes=long) for i in range(9)
    ]
    runs.append(make_run(folder / "hundred", classes=tuple(f"c{i}" for i in range(100)), side=96))
    report(uninterrupted, out=folder / "one.html")
    report(*runs, out=folder / "many.html")
    return {"one": folder / "one.html", "many": folder / "many.html"}


@needs_browser
@pytest.mark.parametrize(("width", "dark"), SCREENS)
@pytest.mark.parametrize("name", ["one", "many"])
def test_the_page_fits_the_screen_and_asks_no_one(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    page = browser.open(pages[name], width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("innerWidth") == width
    beyond = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') || e.matches('.scroll'))"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []
    assert page.requests == []
    assert page.errors == []
    assert "Paceline" in page.evaluate("document.title")


CONTRASTS = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const over = (colour, below) => {
    canvas.fillStyle = `rgb(${below})`; canvas.fillRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const behind = e => e ? over(getComputedStyle(e).backgroundColor, behind(e.parentElement)) : [255, 255, 255];
  const light = rgb => {
    const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = [...document.querySelectorAll('body *')].filter(
    e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim().length > 0 && n.data.trim() !== '·')
      && e.checkVisibility() && e.tagName !== 'title' && e.tagName !== 'STYLE');
  return texts.map(e => {
    const below = behind(e.closest('svg') ? e.closest('figure, td') : e);
    const own = over(getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color'], below);
    const [low, high] = [light(own), light(below)].sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), e.outerHTML.slice(0, 90)];
  }).filter(pair => pair[0] < 4.5);
})()
"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["one", "many"])
def test_every_text_has_enough_contrast_in_light_and_dark(
    browser: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    """4.5 to 1, which is what WCAG asks for."""
    page = browser.open(pages[name], 1280, dark=dark)
    background = page.evaluate("getComputedStyle(document.querySelector('main')).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert (brightness < 60) if dark else (brightness > 200)
    assert page.evaluate(CONTRASTS) == []


@needs_browser
def test_the_page_speaks_to_people_who_do_not_see_it(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = browser.open(pages["one"], 1280)
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    assert page.evaluate("[...document.querySelectorAll('img')].filter(e => !e.alt).length") == 0
    assert page.evaluate("document.querySelectorAll('img').length") == 24
    assert (
        page.evaluate(
            "[...document.querySelectorAll('svg[role=img]')].filter(e => !e.querySelector('title')).length"
        )
        == 0
    )
    assert page.evaluate("document.querySelectorAll('svg[role=img]').length") == 4
    assert (
        page.evaluate(
            "[...document.querySelectorAll('table')].filter(e => !e.querySelector('th')).length"
        )
        == 0
    )
    assert page.evaluate(
        "[...document.querySelectorAll('tr td:nth-child(6)')].map(e => e.innerText)"
    )


@needs_browser
def test_names_with_html_in_them_run_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    page = browser.open(pages["many"], 1280)
    assert page.evaluate("document.title") == "10 runs · Paceline"
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("[...document.images].every(e => e.src.startsWith('data:image/'))")
    assert page.evaluate("document.body.innerText.includes('<script>document.title')")


@needs_browser
def test_marks_of_starts_lie_at_their_time(browser: Browser, tmp_path: Path) -> None:
    page = (
        browser.open(tmp_path / "page.html", 1280)
        if report(make_run(tmp_path / "run"), out=tmp_path / "page.html")
        else None
    )
    assert isinstance(page, Page)
    assert page.evaluate(
        "[...document.querySelectorAll('.event text')].map(e => e.textContent)"
    ) == ["1 worker", "2 workers"]
    left, right = page.evaluate(
        "[...document.querySelectorAll('.event path')].map(e => e.getBoundingClientRect().left)"
    )
    low, high = page.evaluate(
        "(r => [r.left, r.right])(document.querySelector('.event').closest('svg').querySelector('.line').getBoundingClientRect())"
    )
    assert (right - left) / (high - left) == pytest.approx(500 / 936, abs=0.05)
    assert left <= low


def test_a_folder_in_the_way_is_never_replaced(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="is a folder"):
        write_report([str(run)], tmp_path, force=True)
