"""docs/versions.md and docs/troubleshooting.md: what they list is what the program has."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = list((ROOT / "src" / "paceline").rglob("*.py"))


def texts() -> list[str]:
    """Return every text of the program; of an f-string, each part."""
    nodes = [node for file in SOURCES for node in ast.walk(ast.parse(file.read_text()))]
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def test_the_page_lists_every_environment_variable_of_the_program() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    used = {text for text in texts() if re.fullmatch("PACELINE_[A-Z0-9_]+", text)}
    assert used == set(re.findall(r"PACELINE_[A-Z0-9_]+", page))


def test_every_message_of_the_troubleshooting_is_one_of_the_program() -> None:
    page, everything = (ROOT / "docs" / "troubleshooting.md").read_text(), "\n".join(texts())
    messages = re.findall(r"^\| ((?:`[^`]+`(?: or )?)+) \|", page, re.MULTILINE)
    assert len(messages) > 40
    parts = re.split(r"`(?: or `)?|\.\.\.", "".join(messages))
    assert [part for part in parts if part.strip() not in everything] == []
