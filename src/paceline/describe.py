"""What a job amounts to, in numbers: the first line of a training, and `--dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.engines import devices
from paceline.job import Job
from paceline.messages import Send, Start
from paceline.requests import DescribeRequest
from paceline.storage.locations import bring_data

if TYPE_CHECKING:
    from paceline.maths.replica import Core


def summary_line(job: Job, core: Core) -> str:
    """Return every derived number in one line."""
    e, sizes = job.experiment, core.layout.sizes()
    workers, threads = job.place.workers, e.threads_per_replica
    servers = f" + {len(job.cluster.ps)} ps" if job.cluster.ps else ""
    frozen = int(core.template.fixed_mask().sum())
    parameters = f"{sizes['params']:,} parameters" + (f", {frozen:,} more frozen" if frozen else "")
    tests = ", ".join(f"{split.size:,} {name}" for name, split in core.splits.items())
    return (
        f"{core.train.size:,} train, {tests} examples of {len(core.source.classes)} classes · "
        f"{parameters} · {workers} worker{'s' * (workers > 1)}{servers} · "
        f"{e.replicas} replicas x {e.replica_batch_size} = global batch {e.global_batch_size} · "
        f"{threads} thread{'s' * (threads > 1)} per replica, {devices.side_by_side(job)} side by "
        f"side · kernels {core.template.kernels} · {core.plan.steps_per_epoch:,} steps per epoch, "
        f"{core.plan.total_steps:,} in all"
    )


def start_message(job: Job, core: Core, first_step: int, who: str = "", lease: int = 0) -> Start:
    """Return the message that training begins or continues."""
    plan, line = core.plan, who + summary_line(job, core)
    return Start(plan.total_steps, plan.steps_per_epoch, first_step, line, lease)


def numbers(job: Job, core: Core) -> dict[str, Any]:
    """Return every derived number by name."""
    e = job.experiment
    return {
        "examples": {"train": core.train.size}
        | {name: split.size for name, split in core.splits.items()},
        "classes": len(core.source.classes),
        "image_shape": list(core.template.model.input_shape[1:]),
        "parameters": core.layout.sizes()["params"],
        "workers": job.place.workers,
        "ps": len(job.cluster.ps),
        "replicas": e.replicas,
        "replica_batch_size": e.replica_batch_size,
        "global_batch_size": e.global_batch_size,
        "threads_per_replica": e.threads_per_replica,
        "side_by_side": devices.side_by_side(job),
        "kernels": core.template.kernels,
        "steps_per_epoch": core.plan.steps_per_epoch,
        "total_steps": core.plan.total_steps,
    }


def answer(job: Job, request: DescribeRequest, send: Send) -> dict[str, Any]:
    """Return every derived number, and with the table of layers as text, for --dry-run."""
    bring_data(job.experiment.data.dir, send)
    devices.configure(job)
    from paceline.build import build_core

    core = build_core(job)
    rows = [("layer", "kind", "output", "parameters")]
    for layer in core.template.model.layers:
        rows.append((layer.name, type(layer).__name__, _shape(layer), f"{layer.count_params():,}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        + f"  {row[3]:>12}"
        for row in rows
    ]
    text = "\n".join([summary_line(job, core), "", *lines])
    return {"description": text, "numbers": numbers(job, core)}


def _shape(layer: Any) -> str:
    shape = getattr(getattr(layer, "output", None), "shape", None)
    return " x ".join(str(size) for size in shape[1:]) if shape else ""
