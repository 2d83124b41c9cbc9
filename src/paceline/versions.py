"""Versions of the libraries and facts of the machine, as runs record them."""

import os
import platform
import socket
from pathlib import Path

from paceline.experiment.fields import Json

PACKAGES = ("paceline", "tensorflow", "tensorflow-cpu", "keras", "numpy", "safetensors")


def library_versions() -> dict[str, str]:
    """Return the versions that the bits of a run depend on besides its experiment: of Python
    without its patch release, which changes none."""
    from importlib import metadata

    found = {"python": platform.python_version().rpartition(".")[0]}
    for package in PACKAGES:
        try:
            found[package.removesuffix("-cpu")] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> Json:
    """Return where this process runs, for people who compare speeds."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "cpu": next(names, platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory, 1),
    }
