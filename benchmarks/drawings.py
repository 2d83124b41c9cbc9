"""Draws the pictures of docs/images in one style, light and dark: `python -m benchmarks.drawings`.

`benchmarks.chart` and `benchmarks.results` draw what was measured, with the functions of this file.
"""

from collections.abc import Iterator, Sequence

from benchmarks.harness import ROOT

IMAGES = ROOT / "docs" / "images"
COLORS = (("#00796b", "#2aa896"), ("#b8480a", "#ff9d5c"), ("#3f6fb5", "#7fa3d8"))
"""Of bars, lines and workers: in light and in dark pages."""
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'


def _rules(dark: int) -> str:
    ink, quiet, wire = (("#1a2230", "#5a6678", "#7d8a9c"), ("#e8edf4", "#9fabbd", "#9fabbd"))[dark]
    page, edge, box, rim = (
        ("#ffffff", "#d9dfe8", "#f4f6f9", "#c3ccd9"),
        ("#0f151d", "#2f3a4a", "#18202b", "#3b495c"),
    )[dark]
    rules = [
        f".page {{ fill: {page}; stroke: {edge}; }} .box {{ fill: {box}; stroke: {rim}; }}",
        f".grid {{ stroke: {edge}; }} .one {{ stroke: {wire}; stroke-dasharray: 4 4; }}",
        f".wire {{ fill: none; stroke: {wire}; stroke-width: 1.5; }} .head {{ fill: {wire}; }}",
        f"text {{ fill: {ink}; }} .quiet {{ fill: {quiet}; }} .line {{ stroke: {ink}; }}",
        f".shared {{ fill: {box}; stroke: {wire}; stroke-width: 1.5; }}",
    ]
    for number, color in enumerate(COLORS):
        rules.append(f".c{number} {{ fill: {color[dark]}; }}")
        rules.append(f".curve{number} {{ fill: none; stroke: {color[dark]}; stroke-width: 2.5; }}")
    return "\n".join(rules)


STYLE = f"""
{_rules(0)}
text {{ font: 15px {FONT}; }} .quiet {{ font-size: 13px; }} .bold {{ font-weight: 600; }}
.code {{ font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }}
.on {{ fill: #ffffff; font-weight: 600; font-size: 12px; }}
@media (prefers-color-scheme: dark) {{
{_rules(1)}
.on {{ fill: #0f151d; }}
}}
"""


def svg(height: float, title: str, body: Sequence[str]) -> str:
    """Return a picture of 880 units in width."""
    size = f'viewBox="0 0 880 {height:g}" width="880"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">'
    page = f'<rect class="page" x="0.5" y="0.5" width="879" height="{height - 1:g}" rx="12"/>'
    parts = [head, f'<title id="title">{title}</title>', f"<style>{STYLE}</style>", page, *body]
    return "\n".join([*parts, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def box(x: float, y: float, width: float, height: float, *lines: str) -> Iterator[str]:
    """Draw a box with a bold line and quiet ones."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    yield f'<rect class="box" {place} rx="8"/>'
    for number, line in enumerate(lines):
        kind = "quiet" if number else "bold"
        yield text(x + 14, y + 25 + 19 * number, line, kind)


def arrow(path: str, x: float, y: float, direction: str = "right") -> Iterator[str]:
    head = {"right": "l-9 -5 v10 z", "down": "l-5 -9 h10 z", "up": "l-5 9 h10 z"}[direction]
    yield f'<path class="wire" d="{path}"/>'
    yield f'<path class="head" d="M{x:g} {y:g} {head}"/>'


def sum_tree() -> str:
    """The tree of sums over eight replicas, computed by one, two and three workers."""
    body = []
    for number, shares in enumerate(([(0, 8)], [(0, 4), (4, 8)], [(0, 2), (2, 5), (5, 8)])):
        left = 24 + 288 * number
        count = len(shares)
        body.append(text(left + 128, 32, f"{count} worker{'s' * (count > 1)}", "bold", "middle"))
        body += _tree(left, shares, 0, 8)[2]
    for number in range(3):
        x = 150 + 130 * number
        body.append(f'<circle class="c{number}" cx="{x}" cy="248" r="7"/>')
        body.append(text(x + 14, 253, f"worker {number}", "quiet"))
    body.append('<circle class="shared" cx="540" cy="248" r="7"/>')
    body.append(text(554, 253, "added from all workers' parts", "quiet"))
    title = "The same tree of sums over eight replicas, divided among one, two and three workers"
    return svg(272, title, body)


def _tree(
    left: float, shares: Sequence[tuple[int, int]], start: int, stop: int
) -> tuple[float, float, list[str]]:
    """Return the position of a subtree's root and all that is drawn."""
    owner = [i for i, (first, last) in enumerate(shares) if first <= start and stop <= last]
    kind = f"c{owner[0]}" if owner else "shared"
    if stop - start == 1:
        x, y = left + 16 + 32 * start, 200.0
        dot = f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="13"/>'
        return x, y, [dot, text(x, y + 4, f"g{start}", "on", "middle")]
    middle = (start + stop) // 2
    (x1, y1, one), (x2, y2, two) = (
        _tree(left, shares, start, middle),
        _tree(left, shares, middle, stop),
    )
    x, y = (x1 + x2) / 2, min(y1, y2) - 48
    wires = f'<path class="wire" d="M{x1:g} {y1:g} L{x:g} {y:g} L{x2:g} {y2:g}"/>'
    plus_kind = "on" if owner else "bold"
    dot = f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="11"/>'
    return x, y, [wires, *one, *two, dot, text(x, y + 4, "+", plus_kind, "middle")]


def recovery() -> str:
    """What happens when a worker is killed, over time."""
    body = []
    for number in range(3):
        y = 34 + 44 * number
        body.append(text(24, y + 18, f"worker {number}", "bold"))
        killed = number == 1
        body.append(f'<rect class="c0" x="120" y="{y}" width="{200 if killed else 240}" '
                    'height="26" rx="4"/>')  # fmt: skip
        body.append(text(134, y + 17, "trains step 1, 2, 3 ...", "on"))
        body.append(f'<rect class="box" x="500" y="{y}" width="110" height="26" rx="4"/>')
        body.append(text(555, y + 18, "starts", "quiet", "middle"))
        body.append(f'<rect class="c0" x="622" y="{y}" width="234" height="26" rx="4"/>')
        body.append(text(636, y + 17, "trains the next step ...", "on"))
    body.append('<path class="line" stroke-width="3" d="M314 84 l16 16 m0 -16 l-16 16"/>')
    body.append(text(340, 97, "killed", "bold"))
    body.append('<rect class="c1" x="372" y="34" width="116" height="26" rx="4"/>')
    body.append(text(430, 51, "saves its state", "on", "middle"))
    body.append('<rect class="box" x="372" y="122" width="116" height="26" rx="4"/>')
    body.append(text(430, 140, "stops", "quiet", "middle"))
    body += arrow("M120 178 H848", 856, 178)
    for x, words in ((320, "a worker dies"), (430, "a survivor saves"), (555, "all restart")):
        body.append(f'<path class="wire" d="M{x} 172 v12"/>')
        body.append(text(x, 202, words, "quiet", "middle"))
    body.append(text(739, 202, "the same digest as without a failure", "quiet", "middle"))
    title = (
        "A worker is killed. A surviving worker saves the state in its memory. All workers restart "
        "from it and end with the digest of a run without a failure."
    )
    return svg(222, title, body)


def architecture() -> str:
    """A command, its place, its workers, and the run folder."""
    body = [*box(24, 24, 250, 84, "a command", "cli/, api/: flags and settings")]
    body.append(text(38, 87, "experiment/: decides the numbers", "quiet"))
    body += box(314, 24, 250, 84, "launch.py", "places/: where workers run")
    body.append(text(328, 87, "supervise/: start, watch, restart", "quiet"))
    body += box(604, 24, 252, 84, "the run folder", "checkpoints, metrics, result")
    body.append(text(618, 87, "storage/: lease, S3, files", "quiet"))
    body += arrow("M274 66 H304", 313, 66)
    body += box(24, 162, 832, 152, "worker.py, in each process")
    body.append(text(280, 187, "only the chief writes (chief.py)", "quiet"))
    steps = (
        ("data/", "(step, replica)", "to a batch"),
        ("models/", "a Keras model", "as a template"),
        ("maths/", "sum and update:", "pure functions"),
        ("engines/", "advance one state", "together"),
        ("loop.py", "block after block,", "evaluate, act"),
    )
    for number, lines in enumerate(steps):
        x = 44 + 160 * number
        body += box(x, 210, 146, 84, *lines)
        if number:
            body += arrow(f"M{x - 14} 252 H{x - 8}", x, 252)
    body += arrow("M439 108 V153", 439, 162, "down")
    body.append(text(450, 142, "a job, as JSON", "quiet"))
    body += arrow("M730 162 V117", 730, 108, "up")
    body.append(text(741, 142, "checkpoints", "quiet"))
    return svg(338, "A command becomes a job, a place starts workers, the chief writes", body)


def curves(
    title: str, lines: dict[str, list[tuple[float, float]]], unit: str, ticks: Sequence[float]
) -> str:
    """Draw accuracies over costs, a line for each name. `ticks` are accuracies."""
    most = max(cost for points in lines.values() for cost, _ in points)
    right, top, bottom = 700, 60, 320

    def place(cost: float, accuracy: float) -> tuple[float, float]:
        height = (accuracy - ticks[0]) / (ticks[-1] - ticks[0])
        return 80 + (right - 80) * cost / most, bottom - (bottom - top) * height

    body = [text(24, 30, title, "bold")]
    for tick in ticks:
        y = place(0, tick)[1]
        body.append(f'<path class="grid" d="M80 {y:g} H{right}"/>')
        body.append(text(70, y + 5, f"{tick:.0%}", "quiet", "end"))
    for cost in range(0, int(most) + 1, 20):
        body.append(text(place(cost, 0)[0], bottom + 22, f"{cost}", "quiet", "middle"))
    body.append(text((80 + right) / 2, bottom + 44, unit, "quiet", "middle"))
    for number, (name, points) in enumerate(lines.items()):
        places = [place(*point) for point in sorted(points)]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        body.append(f'<path class="curve{number}" d="M{path}"/>')
        for (x, y), (paid, accuracy) in zip(places, sorted(points), strict=True):
            said = f"<title>{name}: {accuracy:.2%} after {paid:.0f} {unit}</title>"
            body.append(
                f'<circle class="c{number}" cx="{x:.1f}" cy="{y:.1f}" r="5">{said}</circle>'
            )
        body.append(text(places[-1][0] + 12, places[-1][1] + 5, name, "bold"))
    return svg(bottom + 60, title, body)


def main() -> None:
    for name, draw in (
        ("sum-tree", sum_tree),
        ("recovery", recovery),
        ("architecture", architecture),
    ):
        (IMAGES / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
