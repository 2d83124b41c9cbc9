"""Describes the machine of a measurement: processor, versions, date, command, source state."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness import ROOT
from paceline.versions import machine

PACKAGES = ("paceline", "tensorflow-cpu", "tensorflow", "keras", "numpy", "ray")


def torch_python() -> str:
    """Return the Python that has torch: PACELINE_TORCH_PYTHON, or else this one."""
    return os.environ.get("PACELINE_TORCH_PYTHON", sys.executable)


def ray_torch_python() -> str:
    """Return the Python with torch and ray[train]: PACELINE_RAY_TORCH_PYTHON, or else this one."""
    return os.environ.get("PACELINE_RAY_TORCH_PYTHON", sys.executable)


def _output(command: list[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False
    ).stdout.strip()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch = _output(
        [torch_python(), "-c", "import importlib.metadata as m; print(m.version('torch'))"]
    )
    return found | ({"torch": torch} if torch else {})


def describe() -> dict[str, object]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks", *sys.argv[1:]]),
        "source": _output(["git", "describe", "--always", "--dirty"]),
        "processor": machine()["cpu"],
        "cores": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "load_average_at_start": os.getloadavg()[0],
        "versions": _versions(),
    }
