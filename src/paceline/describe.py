"""What a job amounts to, in numbers: the first line of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.engines import devices
from paceline.job import Job
from paceline.messages import Start

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
        f"side · kernels {core.template.kernels} · bits: {core.template.bits} · "
        f"{core.plan.steps_per_epoch:,} steps per epoch, "
        f"{core.plan.total_steps:,} in all"
    )


def start_message(job: Job, core: Core, first_step: int, who: str = "", lease: int = 0) -> Start:
    """Return the message that training begins or continues."""
    plan, line = core.plan, who + summary_line(job, core)
    return Start(plan.total_steps, plan.steps_per_epoch, first_step, line, lease)
