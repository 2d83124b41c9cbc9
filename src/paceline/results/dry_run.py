"""What `--dry-run` prints: every derived number, and the table of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.build import summary_line
from paceline.engines import devices
from paceline.experiment.fields import Json
from paceline.job import Job
from paceline.messages import Send
from paceline.requests import DescribeRequest
from paceline.storage.locations import bring_data

if TYPE_CHECKING:
    from paceline.maths.replica import Core


def numbers(job: Job, core: Core) -> Json:
    """Return every derived number by name."""
    e, splits = job.experiment, {"train": core.train, **core.splits}
    return {
        "examples": {name: split.size for name, split in splits.items()},
        "classes": len(core.source.classes),
        "image_shape": list(core.template.model.input_shape[1:]),
        "parameters": core.layout.sizes()["params"],
        "workers": job.place.workers,
        "ps": len(job.cluster.ps),
        "replicas": e.replicas,
        "replica_batch_size": e.replica_batch_size,
        "global_batch_size": e.global_batch_size,
        "threads_per_replica": e.threads_per_replica,
        "side_by_side": devices.own_share(job).side_by_side,
        "kernels": core.template.kernels,
        "steps_per_epoch": core.plan.steps_per_epoch,
        "total_steps": core.plan.total_steps,
    }


def answer(job: Job, request: DescribeRequest, send: Send) -> Json:
    """Return every derived number, and with the table of layers as text, for --dry-run."""
    bring_data(job.experiment.data.dir, send)
    devices.configure(job)
    from paceline.build import build_core

    core = build_core(job)
    rows = [("layer", "kind", "output", "parameters")]
    for layer in core.template.model.layers:
        rows.append((layer.name, type(layer).__name__, _shape(layer), f"{layer.count_params():,}"))
    first, second, third, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [f"{a:<{first}}  {b:<{second}}  {c:<{third}}  {d:>12}" for a, b, c, d in rows]
    text = "\n".join([summary_line(job, core), "", *lines])
    return {"description": text, "numbers": numbers(job, core)}


def _shape(layer: Any) -> str:
    shape = getattr(getattr(layer, "output", None), "shape", None)
    return " x ".join(str(size) for size in shape[1:]) if shape else ""
