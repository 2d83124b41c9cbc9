"""Shows how many times as fast as PyTorch Paceline is: `python -m benchmarks.chart`.

It reads the results of `python -m benchmarks --out benchmarks/speed/CPU.json`, one file for each
CPU, and writes docs/images/speed.svg and the table of the first of them in docs/performance.md.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.drawings import svg
from benchmarks.harness import ROOT

SPEED = ROOT / "benchmarks" / "speed"
PICTURE = ROOT / "docs" / "images" / "speed.svg"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
RATIO = "images/s, paceline to PyTorch's best"
"""The beginning of the figure that is drawn (`summary.compared`)."""
NAMES = {
    "speedrun": "cifar10-speedrun",
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "evaluation": "ResNet-20, evaluation",
    "resnet50": "ResNet-50, 224 pixels",
    "resnet50-bfloat16": "ResNet-50, bfloat16",
}
LEFT, ONE, BAR = 240, 200, 20
"""Where bars begin, the length of a ratio of 1, and the height of a bar."""
COLOR = ("c0", "c2")
"""Of the bars of each CPU."""


def ratios(results: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return the quartiles of each suite's ratio, from a saved file."""
    found = {}
    for suite in NAMES:
        for figure in results["suites"].get(suite, {}).get("figures", ()):
            if figure["name"].startswith(RATIO):
                measured = figure["measured"]
                found[suite] = (measured["low"], measured["median"], measured["high"])
    return found


def read_files() -> list[dict[str, Any]]:
    """Return what was measured on each CPU."""
    return [json.loads(file.read_text()) for file in sorted(SPEED.glob("*.json"))]


def read_all() -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return the ratios of each CPU that was measured."""
    return {results["machine"]["processor"]: ratios(results) for results in read_files()}


def table(results: dict[str, Any]) -> str:
    """Return the table of one CPU in Markdown."""
    head = ["network", "images/s", "divided by PyTorch's best", "PyTorch's CPU time by Paceline's"]
    head += ["CPU ms per image", "divided by TensorFlow's kernels", "PyTorch's best setup"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for suite, name in NAMES.items():
        measured = results["suites"][suite]
        own = "paceline-bfloat16" if suite.endswith("bfloat16") else "paceline"
        row = next(row for row in measured["rows"] if row["name"] == own)
        figures = {figure["name"]: figure["measured"] for figure in measured["figures"]}
        speed = next(figure for figure in figures if figure.startswith(RATIO))
        kernels = figures.get("images/s, own kernels to TensorFlow's")
        cells = (
            name,
            f"{row['images_per_s']['median']:,.4g}",
            _quartiles(figures[speed]),
            _quartiles(figures["CPU time per image, PyTorch's best to paceline"]),
            f"{row['cpu_ms_per_image']['median']:.3g}",
            _quartiles(kernels) if kernels else "",
            speed.rpartition("mostly pytorch-")[2].rstrip(")"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _quartiles(measured: dict[str, float]) -> str:
    return f"{measured['median']:.2f} ({measured['low']:.2f} to {measured['high']:.2f})"


def picture(measured: dict[str, dict[str, tuple[float, float, float]]]) -> str:
    """Return bars with their quartiles as SVG: a group for each network, a bar for each CPU."""
    body, bottom = [*_title(measured)], 66
    for suite, name in NAMES.items():
        bars = [(i, each[suite]) for i, each in enumerate(measured.values()) if suite in each]
        middle = bottom + (len(bars) * BAR + 10) / 2
        body.append(f'<text x="{LEFT - 12}" y="{middle:g}" text-anchor="end">{name}</text>')
        for number, quartiles in bars:
            body += _bar(number, bottom, quartiles)
            bottom += BAR
        bottom += 12
    body.append(f'<path class="one" d="M{LEFT + ONE} 56 V{bottom}"/>')
    body.append(f'<text class="quiet" x="{LEFT + ONE}" y="{bottom + 16}">1: PyTorch</text>')
    spoken = ", ".join(f"{name}: {_spoken(each)}" for name, each in measured.items())
    return svg(bottom + 30, f"Speed relative to the fastest PyTorch setup. {spoken}", body)


def _title(processors: Sequence[str] | dict[str, Any]) -> Iterator[str]:
    text = "Images per second, divided by the fastest PyTorch setup on the same 2 vCPUs"
    yield f'<text x="24" y="30" class="bold">{text}</text>'
    for number, name in enumerate(processors):
        x = LEFT + 300 * number
        yield f'<rect class="{COLOR[number]}" x="{x}" y="40" width="12" height="12" rx="2"/>'
        yield f'<text class="quiet" x="{x + 18}" y="51">{name}</text>'


def _bar(number: int, top: float, quartiles: tuple[float, float, float]) -> Iterator[str]:
    low, median, high = (round(ONE * each) for each in quartiles)
    middle = top + BAR / 2 - 1
    size = f'width="{median}" height="{BAR - 2}"'
    yield f'<rect class="{COLOR[number]}" x="{LEFT}" y="{top:g}" {size} rx="3"/>'
    yield f'<path class="line" d="M{LEFT + low} {middle:g} H{LEFT + high}"/>'
    x = LEFT + max(median, high) + 10
    yield f'<text class="bold" x="{x}" y="{top + 14:g}">{quartiles[1]:.2f}</text>'


def _spoken(measured: dict[str, tuple[float, float, float]]) -> str:
    return ", ".join(f"{NAMES[suite]} {median:.2f}" for suite, (_, median, _) in measured.items())


if __name__ == "__main__":
    PICTURE.write_text(picture(read_all()))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(read_files()[0]) + END + rest.partition(END)[2])
