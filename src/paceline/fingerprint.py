"""What decides the bits that a worker computes: experiment, data, code, kernels, libraries, CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.build import own_code
from paceline.experiment.fields import Json
from paceline.job import Job
from paceline.kernels.library import cpu_flags, exact_name
from paceline.versions import library_versions

if TYPE_CHECKING:
    from paceline.maths.replica import Core


def fingerprint(job: Job, core: Core) -> Json:
    """Return what decides the bits that a worker computes."""
    return {
        "experiment": job.experiment.to_json(),
        "data": data_facts(job, core),
        "code": code_digests(job),
        "kernels": exact_name(core.template.kernels),
        "libraries": library_versions(),
        "bits": core.template.bits,
        "cpu": cpu_features() if core.template.foreign else "any",
    }


def data_facts(job: Job, core: Core) -> Json:
    """Return what a resumed run compares with its data, and what prediction needs without it."""
    source = core.source
    facts: Json = {
        "train": core.train.size,
        **{name: split.size for name, split in core.splits.items()},
        "classes": list(source.classes),
        "image_shape": list(source.image_shape) if source.image_shape else None,
    }
    if source.left_out:
        facts["left_out"] = len(source.left_out)
    if source.digest:
        facts["content"] = source.digest
    if core.experiment == job.experiment:
        return facts
    from paceline.data.statistics import computed_facts

    return facts | computed_facts(job.experiment, core.experiment)


def code_digests(job: Job) -> dict[str, str]:
    """Return digests of the code of the user's own functions that decide the numbers."""
    if not (specs := own_code(job)):
        return {}
    from paceline.experiment.user_code import code_digest

    return {name: code_digest(spec) for name, spec in specs.items()}


def cpu_features() -> str:
    """Return the instruction sets by which oneDNN and Eigen choose their kernels."""
    chosen = ("avx", "fma", "amx", "asimd", "sve", "sse4")
    return " ".join(sorted(flag for flag in cpu_flags() if flag.startswith(chosen)))
