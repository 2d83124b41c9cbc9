"""What decides the bits that a worker computes: experiment, data, code, kernels, libraries, CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.build import own_code
from paceline.experiment.user_code import code_digest
from paceline.job import Job
from paceline.kernels.choice import exact_name
from paceline.versions import library_versions

if TYPE_CHECKING:
    from paceline.maths.replica import Core


def fingerprint(job: Job, core: Core) -> dict[str, Any]:
    """Return what decides the bits that a worker computes."""
    kernels = core.template.kernels
    return {
        "experiment": job.experiment.digest(),
        "data": data_facts(job, core),
        "code": code_digests(job),
        "kernels": exact_name(kernels),
        "libraries": library_versions(),
        "cpu": cpu_features(),
    }


def data_facts(job: Job, core: Core) -> dict[str, Any]:
    """Return what a resumed run compares with its data, and what prediction needs without it."""
    sizes = {name: split.size for name, split in core.splits.items()}
    shape = list(core.source.image_shape) if core.source.image_shape else None
    facts: dict[str, Any] = {
        "train": core.train.size,
        **sizes,
        "classes": list(core.source.classes),
        "image_shape": shape,
    }
    facts |= {"content": core.source.digest} if core.source.digest else {}
    if core.experiment == job.experiment:
        return facts
    from paceline.data.statistics import computed_facts

    return facts | computed_facts(job.experiment, core.experiment)


def code_digests(job: Job) -> dict[str, str]:
    """Return digests of the code of the user's own functions that decide the numbers."""
    return {name: code_digest(spec) for name, spec in own_code(job).items()}


def cpu_features(text: str = "") -> str:
    """Return the instruction sets by which oneDNN and Eigen choose their kernels.

    `text` is a /proc/cpuinfo; this machine's if it is empty.
    """
    try:
        lines = (text or Path("/proc/cpuinfo").read_text()).splitlines()
    except OSError:
        return "unknown"
    flags = next(
        (line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))),
        [],
    )
    chosen = ("avx", "fma", "amx", "asimd", "sve", "sse4")
    return " ".join(sorted(flag for flag in flags if flag.startswith(chosen)))
