"""Checks a release that `make release` built: python tests/support/release.py DIST.

The wheels get the tag that package indexes accept. The sources and the wheel of this machine are
installed in empty environments, and train there to the digest that every release has.
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

import yaml

from newcomer import ROOT, uv

DIGEST = "7703c8f67fcda5b9"
"""Of `paceline train smoke`."""
MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}
"""Name -> number in the header of a library."""
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29)}
"""What a wheel with the tag manylinux_2_34 may ask for (PEP 600)."""


def check_versions() -> str:
    """Return the version, which all files must agree on."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+) \(([\d-]+)\)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest, "the newest section of CHANGELOG.md needs a version and a date"
    found = (str(citation["version"]), str(citation["date-released"]))
    assert found == newest.groups() == (version, newest[2]), (found, newest.groups(), version)
    return version


def tagged(wheel: Path) -> Path:
    """Check the library in a wheel, and name the wheel as package indexes want it."""
    machine = next(each for each in MACHINES if wheel.name.endswith(f"{each}.whl"))
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (each for each in opened.namelist() if each.endswith(".so"))
        library = opened.read(name)
    assert library[18] == MACHINES[machine], f"the library in {wheel.name} is for another CPU"
    for symbols, newest in NEWEST.items():
        found = re.findall(symbols.encode() + rb"_(\d+(?:\.\d+)+)", library)
        needed = max(tuple(map(int, each.split(b"."))) for each in found)
        assert needed <= newest, f"{wheel.name} needs {symbols} {needed}, newer than {newest}"
    tag = f"manylinux_2_34_{machine}"
    command = (sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return wheel.parent / done.stdout.split()[-1]


def train_installed(package: Path, version: str) -> None:
    """Install a package in an empty environment, train, verify and compare the digest."""
    with tempfile.TemporaryDirectory(prefix="paceline-release-") as temporary:
        venv, home = Path(temporary, "venv"), Path(temporary, "home")
        home.mkdir()
        uv("venv", "--quiet", "--python", sys.executable, str(venv))
        what, constraints = f"paceline[cpu] @ {package.as_uri()}", ROOT / "constraints.txt"
        flags = ("--constraint", str(constraints), "--build-constraints", str(constraints))
        uv("pip", "install", "--python", str(venv), what, *flags)
        path = os.pathsep.join((str(venv / "bin"), "/usr/bin", "/bin"))
        environment = {"PATH": path, "HOME": str(home), "PYTHONPATH": ""}

        def run(*words: str) -> str:
            command = (str(venv / "bin" / "paceline"), *words)
            ended = subprocess.run(command, cwd=home, env=environment, capture_output=True)
            text = ended.stdout.decode() + ended.stderr.decode()
            assert ended.returncode == 0, (words, text)
            return text

        assert run("--version").strip() == f"paceline {version}"
        said = run("train", "smoke", "--run-dir", "run", "--kernels", "own")
        assert f"state_sha256={DIGEST}" in said, said
        assert "equal" in run("verify", "run", "--share", "0.2")
        assert "shapes-resnet8" in run("zoo")
    print(f"{package.name}: installed, trained to {DIGEST}..., verified")


def main() -> None:
    dist, version = Path(sys.argv[1]).absolute(), check_versions()
    wheels = [tagged(wheel) for wheel in sorted(dist.glob("*-linux_*.whl"))]
    assert len(wheels) == len(MACHINES), [wheel.name for wheel in wheels]
    (sources,) = dist.glob("*.tar.gz")
    twine = (sys.executable, "-m", "twine", "check", "--strict", *wheels, sources)
    subprocess.run(twine, check=True)
    (here,) = (wheel for wheel in wheels if wheel.name.endswith(f"{platform.machine()}.whl"))
    for package in (here, sources):
        train_installed(package, version)
    files = [*wheels, sources, *sorted(dist.glob("zoo/*.tar"))]
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(dist)}"
        for file in files
    ]
    (dist / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(f"{dist} has release {version}: {len(files)} files, and their digests in SHA256SUMS")


if __name__ == "__main__":
    main()
