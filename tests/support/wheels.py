"""Building Paceline's wheel, and installing it into an empty environment. Not a test itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
FILES = ("pyproject.toml", "wheel_build.py", "MANIFEST.in", "README.md", "LICENSE", "src")


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
