"""The report in a real browser: it fits any screen, requests nothing, and is readable."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, needs_browser
from report_runs import EVIL, make_run, report


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, uninterrupted: Path) -> dict[str, Path]:
    """The page of a real run, and one of many runs with names that no one would choose."""
    folder = tmp_path_factory.mktemp("pages")
    long = ("a class with a rather long name", "Donaudampfschifffahrtsgesellschaft" * 2, EVIL)
    name = "very-" * 12 + "long-name"
    runs = [make_run(folder / f"{name}-{i}", seed=i, classes=long) for i in range(9)]
    runs.append(make_run(folder / "hundred", classes=tuple(f"c{i}" for i in range(100)), side=96))
    report(uninterrupted, out=folder / "one.html")
    report(*runs, out=folder / "many.html")
    return {"one": folder / "one.html", "many": folder / "many.html"}


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["one", "many"])
def test_the_page_fits_the_screen_and_asks_no_one(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    page = browser.open(pages[name], width)
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


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_follows_the_scheme_of_the_system(
    browser: Browser, pages: dict[str, Path], dark: bool
) -> None:
    page = browser.open(pages["one"], 1280, dark=dark)
    background = page.evaluate("getComputedStyle(document.querySelector('main')).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert (brightness < 60) if dark else (brightness > 200)


@needs_browser
def test_the_page_speaks_to_people_who_do_not_see_it(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = browser.open(pages["one"], 1280)
    without = "[...document.querySelectorAll('{}')].filter(e => !{}).length"
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    assert page.evaluate("document.querySelectorAll('img').length") == 24
    assert page.evaluate("document.querySelectorAll('svg[role=img]').length") == 4
    assert page.evaluate(without.format("img", "e.alt")) == 0
    assert page.evaluate(without.format("svg[role=img]", "e.querySelector('title')")) == 0
    assert page.evaluate(without.format("table", "e.querySelector('th')")) == 0


@needs_browser
def test_names_with_html_in_them_run_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    page = browser.open(pages["many"], 1280)
    assert page.evaluate("document.title") == "10 runs · Paceline"
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("[...document.images].every(e => e.src.startsWith('data:image/'))")
    assert page.evaluate("document.body.innerText.includes('<script>document.title')")
