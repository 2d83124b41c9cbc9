"""The newcomer's path: what README.md and the first guide say, in an empty environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from newcomer import Command, adapted, commands_of, why_not
from wheels import ROOT, UV

GUIDE = ROOT / "docs" / "first-steps.md"


def test_commands_are_found_in_blocks_of_every_kind(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text with `paceline runs` in it.\n"
        "```\npaceline train smoke   # a comment\nstep 1/2  loss 0.1\n```\n"
        "```console\n$ paceline eval \\\n>   RUN\naccuracy 0.9\n$ ls '# no comment'\n```\n"
        "```bash\ncat > a.py <<E\nx = 1\nE\npython a.py\n```\n"
        "```python\nimport paceline\n```\n"
        "```sh\npaceline runs\n# a comment\npaceline doctor\n```\n"
        "```yaml\npaceline: no command\n```\n"
    )
    found = commands_of(page)
    assert [(each.line, each.text) for each in found] == [
        (3, "paceline train smoke"),
        (7, "paceline eval \\\n  RUN"),
        (10, "ls '# no comment'"),
        (13, "cat > a.py <<E\nx = 1\nE\npython a.py"),
        (19, "import paceline"),
        (22, "paceline runs"),
        (24, "paceline doctor"),
    ]
    assert [each.line for each in found if each.language == "python"] == [19]


def test_every_command_of_the_readme_is_run_or_has_a_reason(tmp_path: Path) -> None:
    found = commands_of(ROOT / "README.md")
    run = [each for each in found if not why_not(each)]
    assert len(run) >= 15
    texts = [each.text for each in run]
    assert "paceline train" in texts
    assert "paceline predict RUN photos/ --top 3" in texts
    assert all(each.text.startswith("paceline ") for each in run if each.language == "bash")


def test_only_trainings_of_the_readme_are_shortened(tmp_path: Path) -> None:
    (tmp_path / "runs" / "shapes-12345678").mkdir(parents=True)
    (tmp_path / "runs" / "shapes-12345678" / "config.json").touch()
    for page, given, expected in (
        ("README.md", "paceline train", "paceline train"),
        ("README.md", "paceline train my-images", "paceline train my-images --stop-at 2"),
        ("README.md", "paceline report RUN... -o a", "paceline report runs/shapes-12345678 -o a"),
        ("first-steps.md", "paceline train my-images", "paceline train my-images"),
    ):
        assert adapted(Command(page, 1, given), tmp_path) == expected


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not UV, reason="uv is not installed")
@pytest.mark.parametrize("page", [ROOT / "README.md", GUIDE], ids=lambda page: page.name)
def test_the_commands_of_a_page_run_in_an_empty_environment(page: Path, tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "tests" / "support" / "newcomer.py"), str(page)]
    ended = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "commands ran" in ended.stdout
