"""The newcomer's path: the commands of README.md and of the first guide, in an empty environment.

`python tests/support/newcomer.py README.md docs/first-steps.md` builds the wheel, installs it with
its dependencies into a new environment outside of the repository, and runs there what the pages
say, in their order. It ends at the first command that fails. `--list` only prints the commands.

A person has data and code of their own where the pages name some: this script makes small ones. It
shortens README's trainings, which take hours; a guide is run as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wheels import ROOT, build_wheel, install, uv

EXTRAS = "cpu,onnx,search"
SHELLS = ("console", "bash")
PROGRAMS = r"(paceline|make|python|grep|\.) "
"""A line of an `sh` block, or of a block without a language, is a command if it begins so."""
NOT_HERE = (
    (r"^make ", "it is for a clone of the repository"),
    (r"^git clone", "it is for a clone of the repository"),
    (r"^(python3? -m venv|\. |source |pip install|uv )", "this script has set the environment up"),
    (r"^paceline data fetch", "it needs the Internet"),
    (r"^paceline tensorboard", "it runs until Ctrl-C; tests/cli/test_list_runs.py starts it"),
)
"""Commands that are not run, and why."""
SHORTER = ((r"^paceline train (?!smoke)\S", "--stop-at 2"),)
"""Flags for commands of README.md that take hours. `paceline train` alone is run as it is."""
PREPARE = """
from pathlib import Path
import numpy as np
from PIL import Image

noise = np.random.default_rng(0)
folder = Path("data/cifar-10-batches-bin")
folder.mkdir(parents=True)
names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
for name in names:
    rows = noise.integers(0, 256, (1000, 3073), np.uint8)
    rows[:, 0] %= 10
    (folder / name).write_bytes(rows.tobytes())
(folder / "batches.meta.txt").write_text("\\n".join("abcdefghij") + "\\n")
for split, count in (("train", 40), ("val", 8)):
    for label in ("cat", "dog"):
        place = Path("photos", split, label)
        place.mkdir(parents=True)
        for i in range(count):
            Image.fromarray(noise.integers(0, 256, (40, 48, 3), np.uint8)).save(place / f"{i}.jpg")
Path("my_model.py").write_text('''import keras

def build(image_shape, num_classes):
    return keras.Sequential([
        keras.Input(image_shape),
        keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(num_classes),
    ])
''')
"""
"""What the person of README.md has: CIFAR-10, a folder of photos, and code."""
ARRAYS = """import numpy as np
images, labels = np.zeros((512, 32, 32, 3), np.uint8), np.arange(512) % 10
test_images, test_labels = images[:64], labels[:64]
"""
"""What README's Python has before its first line."""


@dataclass(frozen=True)
class Command:
    """A command or a program of a page."""

    page: str
    line: int
    text: str
    language: str = "bash"

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def commands_of(page: Path) -> list[Command]:
    """Return what a page says to run, in its order."""
    found: list[Command] = []
    for line, language, lines in _blocks(page.read_text()):
        if language == "python":
            found.append(Command(page.name, line, "\n".join(lines), "python"))
        elif language in SHELLS and not any(each.startswith("$ ") for each in lines):
            found.append(Command(page.name, line, "\n".join(lines)))
        elif language in ("", "sh", *SHELLS):
            found += [Command(page.name, line + n, text) for n, text in _lines(lines, language)]
    return found


def _blocks(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the first line, the language and the lines of each block of code."""
    language, lines, first = None, list[str](), 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence and language is None:
            language, lines, first = fence[1], [], number + 1
        elif fence:
            yield first, language or "", lines
            language = None
        elif language is not None:
            lines.append(line.strip() if not language else line)


def _lines(lines: list[str], language: str) -> Iterator[tuple[int, str]]:
    """Yield the commands among the lines: those after `$ `, or those that begin with PROGRAMS."""
    number = 0
    while number < len(lines):
        first, line = number, lines[number]
        begins = line.startswith("$ ") if language in SHELLS else re.match(PROGRAMS, line)
        number += 1
        if not begins:
            continue
        command = line.removeprefix("$ ")
        while command.endswith("\\") and number < len(lines):
            command += "\n" + lines[number].removeprefix("> ")
            number += 1
        yield first, re.sub(r"\s+#\s.*", "", command) if "\n" not in command else command


def why_not(command: Command) -> str:
    """Return why a command is not run here; empty if it is."""
    return next((why for pattern, why in NOT_HERE if re.search(pattern, command.text)), "")


def adapted(command: Command, home: Path) -> str:
    """Return a command as it is run: README's placeholder for a run filled in, and shortened."""
    text = command.text
    if command.page != "README.md":
        return text
    if command.language == "python":
        return ARRAYS + text
    runs = sorted(
        (home / "runs").glob("shapes-*/config.json"), key=lambda each: each.stat().st_mtime
    )
    if runs:  # the first is that of `paceline train`, which was not shortened
        text = re.sub(r"\bRUN(\.\.\.)?(?!\w)", str(runs[0].parent.relative_to(home)), text)
    for pattern, flags in SHORTER:
        if re.search(pattern, text) and "--dry-run" not in text:
            text = f"{text} {flags}"
    return text


def environment(venv: Path, home: Path) -> dict[str, str]:
    """Return the variables of a person who has nothing but the environment."""
    return {
        "PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home.parent / "home"),
        "PACELINE_CACHE": str(home.parent / "cache"),
        "LANG": "C.UTF-8",
        "COLUMNS": "100",
    }


def walk(pages: list[Path], folder: Path, wheel: Path | None) -> int:
    """Set an environment up in `folder` and run all commands; return how many were run."""
    venv, home = folder / "venv", folder / "work"
    home.mkdir()
    (folder / "home").mkdir()
    if wheel is None:
        wheel, _ = build_wheel(folder)
    uv("venv", "--python", sys.executable, str(venv))
    install(folder, f"{wheel}[{EXTRAS}]", "--constraint", str(ROOT / "constraints.txt"))
    variables, count = environment(venv, home), 0
    if any(page.name == "README.md" for page in pages):
        subprocess.run(
            [venv / "bin" / "python", "-c", PREPARE], cwd=home, env=variables, check=True
        )
    for command in (each for page in pages for each in commands_of(page)):
        if why := why_not(command):
            print(f"{command.where}: not run, {why}: {command.text.splitlines()[0]}", flush=True)
            continue
        if named := re.match(r"# (\w+\.py)\n", command.text):  # a file to save, run later
            (home / named[1]).write_text(command.text)
            continue
        _run(command, adapted(command, home), home, variables)
        count += 1
    return count


def _run(command: Command, text: str, home: Path, variables: dict[str, str]) -> None:
    print(f"{command.where}: {text}", flush=True)
    program = ["python", "-"] if command.language == "python" else ["bash", "-euo", "pipefail"]
    began = time.monotonic()
    found = Path(variables["PATH"].split(":")[0], program[0])
    ended = subprocess.run(
        [str(found) if found.exists() else program[0], *program[1:]],
        input=text,
        cwd=home,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    print(f"    exit code {ended.returncode} after {time.monotonic() - began:.0f} s", flush=True)
    if ended.returncode:
        sys.exit(f"{command.where} failed: {text}\n{ended.stdout[-4000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--wheel", type=Path, help="install this wheel instead of building one")
    parser.add_argument("--list", action="store_true", help="only print the commands")
    given = parser.parse_args()
    if given.list:
        for command in (each for page in given.pages for each in commands_of(page)):
            print(f"{command.where}: {why_not(command) or 'run'}: {command.text}")
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    wheel = given.wheel.resolve() if given.wheel else None
    with tempfile.TemporaryDirectory(prefix="paceline-newcomer-") as folder:
        count = walk([page.resolve() for page in given.pages], Path(folder), wheel)
    print(f"ready: {count} commands ran")


if __name__ == "__main__":
    main()
