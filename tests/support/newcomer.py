"""A newcomer's path: the wheel in an empty environment, and the commands of the first pages.

A person has data and code of their own where README.md names some: `prepare` makes small ones.
README's longer runs are shortened; a guide is run as it is.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cifar_folders import write_binary
from helpers import OWN_CODE, Ended, paceline

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
FILES = ("pyproject.toml", "wheel_build.py", "MANIFEST.in", "README.md", "LICENSE", "src")
NOT_HERE = r"make |git clone|python3? -m venv|\. |source |pip install|uv |paceline data fetch"
"""What needs a clone or the Internet, or what the test has done already."""
ARRAYS = """import numpy as np
images, labels = np.zeros((512, 32, 32, 3), np.uint8), np.arange(512) % 10
test_images, test_labels = images[:64], labels[:64]
"""
"""What README's Python has before its first line."""


def prepare(home: Path) -> None:
    """Give the person of README.md CIFAR-10, a folder of photos, and code, all small."""
    from image_folders import write_images

    folder = write_binary(home / "data" / "cifar-10-batches-bin", "cifar10", per_file=1000)
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    write_images(home / "photos", per_class=40)
    (home / "my_model.py").write_text(f"{OWN_CODE}\n\nbuild = build_model\n")


def commands_of(page: Path) -> list[tuple[str, str]]:
    """Return what a page says to run, in its order: ("sh" or "python", text)."""
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    found = list[tuple[str, str]]()
    for language, text in blocks:
        lines = [text] if language == "python" else re.sub(r"\s+# .*", "", text).splitlines()
        found += [(language, each) for each in lines if each and not re.match(NOT_HERE, each)]
    return found


def adapted(text: str, home: Path) -> str:
    """Return a command of README.md as it is run: with a real run, and shortened."""
    runs = sorted(
        (home / "runs").glob("shapes-*/config.json"), key=lambda each: each.stat().st_mtime
    )
    if runs:  # the first is that of `paceline train`, which was not shortened
        text = re.sub(r"\bRUN\b", str(runs[0].parent.relative_to(home)), text)
    shorter = re.match(r"paceline train (?!smoke)\S", text)
    return f"{text} --stop-at 2" if shorter else text


def run_page(page: Path, home: Path, environment: dict[str, str]) -> dict[str, Ended]:
    """Save the programs of a page and run its commands, one by one; return how they ended."""
    ended = {}
    for language, text in commands_of(page):
        if named := re.match(r"# (\w+\.py)\n", text):  # a file to save, run later
            (home / named[1]).write_text(text)
            continue
        command = ("bash", "-c", text)
        if language == "python":
            command = ("python", "-c", ARRAYS + text)
        elif page.name == "README.md":
            command = ("bash", "-c", adapted(text, home))
        ended[text] = paceline(cwd=home, command=command, environment=environment, timeout_s=400)
        assert ended[text].code == 0, (command, ended[text])
    return ended


def uv(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(UV), *arguments], env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def build_wheel(folder: Path, **environment: str) -> tuple[Path, str]:
    """Build a copy of the sources, first the archive of sources, from it the wheel.

    Return the wheel, and what was printed.
    """
    source = folder / "source"
    source.mkdir()
    for name in FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name)
        else:
            shutil.copyfile(ROOT / name, source / name)
    (source / "src" / "paceline" / "kernels" / "lib").mkdir(exist_ok=True)
    (source / "src" / "paceline" / "kernels" / "lib" / "of-other-sources.so").touch()
    constraints = ("--build-constraints", str(ROOT / "constraints.txt"))
    places = ("--out-dir", str(folder / "dist"), "--python", sys.executable)
    said = uv("build", str(source), *constraints, *places, **environment).stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel, said


def install(folder: Path, what: str, *flags: str) -> None:
    uv("pip", "install", "--python", str(folder / "venv"), what, *flags)
