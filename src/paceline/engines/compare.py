"""Whether all workers of a run would compute the same bits: they compare it before they train."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import UserError
from paceline.experiment.dataclass_json import differences
from paceline.job import Job
from paceline.kernels.library import library_name
from paceline.versions import library_versions
from paceline.worker_build import code_digests, data_facts

if TYPE_CHECKING:
    from paceline.engines.collective import CollectiveEngine
    from paceline.maths.replica import Core


LIBRARIES_HANDLE = 400
LIBRARIES_FILE = f"/proc/self/fd/{LIBRARIES_HANDLE}"


def compare_workers(job: Job, core: Core, engine: CollectiveEngine) -> None:
    """Raise UserError in every worker if the bits of one would differ from the chief's."""
    if job.cluster.num_workers == 1:
        return
    text = json.dumps(fingerprint(job, core), sort_keys=True).encode()
    lengths = engine.gather(np.array([len(text)], np.int64))[:, 0]
    padded = np.frombuffer(text.ljust(int(lengths.max()), b" "), np.uint8).astype(np.int32)
    everyone = [json.loads(bytes(row.astype(np.uint8))) for row in engine.gather(padded)]
    for index, other in enumerate(everyone):
        if different := differences(everyone[0], other, everything=True):
            _wait_for_verdicts(engine)
            raise UserError(
                f"worker {index} ({job.cluster.addresses[index]}) differs from the chief: "
                f"{', '.join(different[:4])}; "
                "all workers need the same experiment, data, libraries, kernels and kind of CPU"
            )


def _wait_for_verdicts(engine: CollectiveEngine) -> None:
    """Return when every worker has read all fingerprints, and so has come to the same verdict.

    A worker reads them from the others' processes. If one left before, the others would see only
    that a worker is gone, and a platform would restart them for ever.
    """
    from tensorflow.errors import OpError

    with suppress(OpError):  # whoever has left knows the verdict, and so does this worker
        engine.close()


def fingerprint(job: Job, core: Core) -> dict[str, Any]:
    """Return what decides the bits that a worker computes."""
    kernels = core.template.kernels
    return {
        "experiment": job.experiment.digest(),
        "data": data_facts(job, core),
        "code": code_digests(job),
        "kernels": f"own ({library_name()})" if kernels == "own" else kernels,
        "libraries": library_versions(),
        "cpu": cpu_features(),
    }


def publish_libraries() -> None:
    """Let the chief of parameter servers read this process's libraries, as a file of /proc.

    The chief sends operations, and one of them reads files. Nothing is left behind.
    """
    handle = os.memfd_create("paceline-libraries")
    os.write(handle, json.dumps(library_versions()).encode())
    os.dup2(handle, LIBRARIES_HANDLE, inheritable=False)
    os.close(handle)


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
