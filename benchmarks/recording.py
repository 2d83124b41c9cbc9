"""Records a terminal: train, Ctrl-C, resume, the same digest. `python -m benchmarks.recording`.

It runs the real commands in a pseudo terminal, and draws what they printed as an animated picture:
docs/images/terminal.svg. Pauses are shortened. Without animation, it shows the end.
"""

import html
import os
import pty
import re
import sys
import tempfile
import textwrap
from pathlib import Path

from benchmarks.drawings import IMAGES

COLUMNS, LINE, LEFT, TOP = 104, 19, 22, 62
STOP = "(step 156)"
"""After this output, somebody presses Ctrl-C."""
COMMANDS = (
    ("paceline train shapes --epochs 2 --run-dir runs/one", ""),
    ("paceline train shapes --epochs 2 --run-dir runs/two", STOP),
    ("paceline train shapes --epochs 2 --run-dir runs/two --workers 2", ""),
    ("grep -o 'state_sha256.*[0-9a-f]' runs/*/result.json", ""),
)
STYLE = """
.screen { fill: #10161f; stroke: #3b495c; }
text { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; fill: #cfd8e3; white-space: pre; }
.typed { fill: #ffffff; font-weight: 600; } .prompt { fill: #2aa896; }
.digest { fill: #e3c04f; font-weight: 600; } .note { fill: #9fabbd; }
.row { animation: shown 1ms both; }
@keyframes shown { from { visibility: hidden; } to { visibility: visible; } }
@media (prefers-reduced-motion: reduce) { .row { animation: none; } }
"""


def run(command: str, stop: str, folder: Path) -> list[str]:
    """Run a command in a pseudo terminal and return its lines; press Ctrl-C after `stop`."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        os.execvpe("bash", ["bash", "-c", command], os.environ | {"PATH": path, "TERM": "dumb"})
    output, pressed = b"", False
    while True:
        try:
            chunk = os.read(terminal, 65_536)
        except OSError:  # the terminal is closed
            break
        if not chunk:
            break
        output += chunk
        if stop and not pressed and stop.encode() in output:
            os.write(terminal, b"\x03")
            pressed = True
    os.waitpid(child, 0)
    lines = output.decode().replace("\r", "").replace("^C", "^C\n").split("\n")
    return [line.rstrip() for line in lines if line.strip()]


def drawn(rows: list[tuple[float, str, str]]) -> str:
    """Return the picture of rows: when each appears, its class and its text."""
    height = TOP + LINE * len(rows)
    size = f'viewBox="0 0 880 {height}" width="880"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">'
    title = "A run that is stopped and resumed with two workers ends with the same digest"
    screen = f'<rect class="screen" x="0.5" y="0.5" width="879" height="{height - 1}" rx="12"/>'
    dots = [
        f'<circle cx="{24 + 18 * n}" cy="22" r="5" fill="{color}"/>'
        for n, color in enumerate(("#ff6b5e", "#e3c04f", "#4fd1a1"))
    ]
    lines = []
    for number, (time, kind, text) in enumerate(rows):
        place = f'x="{LEFT}" y="{TOP - 6 + LINE * number}" style="animation-delay:{time:.2f}s"'
        lines.append(f'<text class="row {kind}" {place}>{marked(text, kind)}</text>')
    named = f'<title id="title">{title}</title>'
    return "\n".join([head, named, f"<style>{STYLE}</style>", screen, *dots, *lines, "</svg>", ""])


def marked(text: str, kind: str) -> str:
    """Return a row with its prompt and its digest in colors."""
    text = html.escape(text, quote=False)
    if kind == "typed":
        return text.replace("$", '<tspan class="prompt">$</tspan>', 1)
    return re.sub(r"\b[0-9a-f]{64}\b", r'<tspan class="digest">\g<0></tspan>', text)


def main() -> None:
    rows, now = list[tuple[float, str, str]](), 0.25
    with tempfile.TemporaryDirectory(prefix="paceline-recording-") as folder:
        for command, stop in COMMANDS:
            rows.append((now, "typed", f"$ {command}"))
            now += 0.6
            for line in run(command, stop, Path(folder)):
                line = line.replace(f"{folder}/", "")
                parts = textwrap.wrap(line, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
                rows += [(now, "", part) for part in parts]
                now += 0.35
            now += 0.3
    (IMAGES / "terminal.svg").write_text(drawn(rows))


if __name__ == "__main__":
    main()
