"""The documentation site: built strictly, complete, and without requests to others."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import paceline
from paceline.cli.commands import COMMANDS, load_command
from paceline.cli.parse import flags_of

ROOT = Path(__file__).parents[2]
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
needs_mkdocs = pytest.mark.skipif(
    not (find_spec("mkdocs") and find_spec("material")), reason="the extra `docs` is not installed"
)
pytestmark = [needs_mkdocs, pytest.mark.xdist_group("site")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    return folder


@pytest.mark.slow
def test_every_command_with_its_flags_and_every_public_name_is_in_the_reference(site: Path) -> None:
    commands = (site / "cli" / "index.html").read_text()
    for name in COMMANDS:
        assert f"paceline {name}<" in commands
        for flag in flags_of(load_command(name)):
            assert re.search(rf"--{flag}[ ,<]", commands), (name, flag)
    names = (site / "api" / "index.html").read_text()
    assert [name for name in paceline.__all__ if f'id="paceline.{name}"' not in names] == []
    assert "&lt;hash of the experiment&gt;" in names
    of_train = names.split('id="paceline.train"')[1].split('id="paceline.evaluate"')[0]
    assert "<pre" in of_train, "an example"


def test_no_page_asks_another_server_for_anything(site: Path) -> None:
    asked = (
        r'(?:src|srcset)="(?:https?:)?//|<link[^>]*href="(?:https?:)?//|@import|url\(["\']?https?:'
    )
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 30
    assert [str(page) for page in pages if re.search(asked, page.read_text())] == []


def headings(file: Path) -> set[str]:
    """The anchors that git hosts give to headings."""
    found = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in found}


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere_on_a_plain_git_host(text: Path) -> None:
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]*))?\)", text.read_text()):
        if ":" in target:
            continue
        file = (text.parent / target) if target else text
        assert file.exists(), target
        assert not anchor or anchor in headings(file), (target, anchor)
