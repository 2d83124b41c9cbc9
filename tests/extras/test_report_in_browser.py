"""The report in a real browser: it fits any screen, requests nothing, and is readable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, needs_browser
from report_runs import EVIL, make_run, report

SCREENS = [(390, False), (390, True), (1280, False), (1280, True)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


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
        "[...document.querySelectorAll('body *')]"
        ".filter(e => !e.closest('.scroll') || e.matches('.scroll'))"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []
    assert page.requests == []
    assert page.errors == []
    assert "Paceline" in page.evaluate("document.title")


CONTRASTS = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const over = (colour, below) => {
    for (const style of [`rgb(${below})`, colour]) {
      canvas.fillStyle = style; canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const behind = e => e
    ? over(getComputedStyle(e).backgroundColor, behind(e.parentElement)) : [255, 255, 255];
  const light = rgb => {
    const [r, g, b] = rgb.map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = [...document.querySelectorAll('body *')].filter(
    e => [...e.childNodes].some(n => n.nodeType === 3 && !['', '·'].includes(n.data.trim()))
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
            "[...document.querySelectorAll('svg[role=img]')]"
            ".filter(e => !e.querySelector('title')).length"
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
def test_marks_of_starts_are_at_their_time(browser: Browser, tmp_path: Path) -> None:
    report(make_run(tmp_path / "run"), out=tmp_path / "page.html")
    page = browser.open(tmp_path / "page.html", 1280)
    assert page.evaluate(
        "[...document.querySelectorAll('.event text')].map(e => e.textContent)"
    ) == ["1 worker", "2 workers"]
    left, right = page.evaluate(
        "[...document.querySelectorAll('.event path')].map(e => e.getBoundingClientRect().left)"
    )
    low, high = page.evaluate(
        "(r => [r.left, r.right])(document.querySelector('.event').closest('svg')"
        ".querySelector('.line').getBoundingClientRect())"
    )
    assert (right - left) / (high - left) == pytest.approx(500 / 936, abs=0.05)
    assert left <= low
