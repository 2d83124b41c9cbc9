"""README.md is short enough to be read, and its numbers come from files that a script wrote."""

import json
import re
import statistics

from benchmarks import chart, results

from newcomer import ROOT

TEXT = (ROOT / "README.md").read_text()


def test_the_first_screen_and_the_tables_are_short() -> None:
    assert len(TEXT.splitlines()) <= 120
    bullets = re.findall(r"^- (.*)", TEXT.split("## Quick start")[0], re.MULTILINE)
    assert len(bullets) == 5
    assert [each for each in bullets if len(each.split()) > 15] == []
    cells = [cell.strip() for row in re.findall(r"^\|(.*)\|$", TEXT, re.MULTILINE)
             for cell in re.sub(r"\]\([^)]*\)", "]", row).split("|")]  # fmt: skip
    assert [cell for cell in cells if len(cell) > 60] == []


def test_the_speed_is_what_was_measured() -> None:
    ratios = [each["resnet20"][1] for each in chart.read_all().values()]
    assert f"ResNet-20 trains {min(ratios):.1f} to {max(ratios):.1f} times as fast" in TEXT


def test_the_accuracies_and_their_cost_are_what_was_measured() -> None:
    finished = {row.name: runs for row, runs in results.read_finished().items()}
    speedrun, resnet = finished["speedrun-11"], finished["resnet20-40"]
    best = statistics.mean(run.accuracies["shifts"] for run in speedrun)
    minutes = statistics.mean(run.cpu_minutes for run in speedrun)
    words = " ".join(TEXT.split())
    assert f"reaches {best:.2%}".replace("%", " %") in words
    assert f"in {minutes:.0f} CPU minutes" in words
    assert f"{resnet[0].accuracies['none']:.2%}".replace("%", " %") in words
    assert f"in {resnet[0].cpu_minutes:.0f} CPU minutes" in words


def test_the_result_that_it_shows_is_that_of_the_zoo() -> None:
    row = json.loads((ROOT / "src/paceline/zoo/shapes-resnet8/zoo.json").read_text())
    assert f"test_accuracy={row['test_accuracy']}" in TEXT
    assert f"state_sha256={row['state_sha256'][:16]}..." in TEXT
