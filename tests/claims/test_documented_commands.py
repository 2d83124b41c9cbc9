"""Every command, flag, setting and file that README.md, docs/ and deploy/ name exists."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from paceline.cli.commands import COMMANDS, load_command, split_command
from paceline.cli.parse import flags_of, parse
from paceline.errors import UserError
from paceline.experiment.names import SHORT_NAMES

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "deploy" / "README.md"]
FLAGS = {flag for name in COMMANDS for flag in flags_of(load_command(name))} | {
    *SHORT_NAMES,
    "gpus",
}
FOREIGN = {
    *(
        "archives",
        "cpus-per-task",
        "gpus-per-task",
        "deploy-mode",
        "master",
        "py-files",
        "signal",
        "volume",
        "wait",
    ),
    *("round", "seeds", "sync", "version", "help", "zip"),
}
"""Flags of other programs and of our scripts."""
PLACEHOLDERS = {"RECIPE": "shapes", "N": "1", "M": "1", "H": "2", "C": "1"}
SETTING = re.compile(
    r"\b((?:optimizer|schedule|augment|scaling|average|records|loss|sync)\.(?!py\b)[a-z_-]+)"
)


def code_of(page: Path) -> list[str]:
    """Return the inline code of a page and the lines of its blocks of commands."""
    text = page.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [*re.findall(r"`([^`\n]+)`", prose), *lines]


def command_in(code: str) -> list[str]:
    """Return the words after `paceline`, if they are a command that a person can type."""
    found = re.search(r"(?:^|\s)paceline ((?:[a-z-]+)(?: .*)?)$", code)
    if not found or re.match(r"(pip|import|from|#)", code):
        return []
    text = re.split(r"\s#\s|[|;>&`]", found[1])[0].replace("...", "")
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(text)]
    return words if split_command(words)[0] in COMMANDS and "--help" not in words else []


@cache
def refusal_of(*words: str) -> str:
    """Return why the program refuses a command; empty if it does not."""
    name, arguments = split_command(list(words))
    command, default = load_command(name), None
    try:
        if hasattr(command, "of_recipe"):
            is_named = arguments and not arguments[0].startswith("-")
            default = command.of_recipe(arguments.pop(0) if is_named else "shapes")
        parse(command, f"paceline {name}", arguments, default)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_understood(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.toml").write_text('recipe = "smoke"\n')
    monkeypatch.chdir(tmp_path)
    written = {" ".join(words): words for words in map(command_in, code_of(page))}
    written = {text: words for text, words in written.items() if text not in {"", *COMMANDS}}
    refused = {text: refusal_of(*words) for text, words in written.items()}
    assert {text: why for text, why in refused.items() if why} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_and_setting_of_a_page_exists(page: Path) -> None:
    code = code_of(page)
    own = [each for each in code if each.startswith(("--", "paceline "))]
    flags = {flag for each in own for flag in re.findall(r"(?:^|\s)--(?:no-)?([a-z.-]+)", each)}
    settings = {found.replace("_", "-") for each in code for found in SETTING.findall(each)}
    foreign = set() if page.name != "coming-from.md" else {*flags}  # it is about other programs
    assert sorted((flags | settings) - FLAGS - FOREIGN - foreign) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_the_repository_that_a_page_names_exists(page: Path) -> None:
    start = re.compile(r"(?:src/paceline|tests|benchmarks|examples|deploy|docs)/[\w./-]*\w")
    code = re.findall(r"`([^`\n]+)`", page.read_text())
    named = {word for each in code for word in each.split() if start.fullmatch(word)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_commands_are_found() -> None:
    found = [words for page in PAGES for words in map(command_in, code_of(page)) if words]
    assert len(found) > 150
    assert refusal_of("train", "smoke", "--no-such-flag", "1")
