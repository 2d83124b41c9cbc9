"""Job -> core: data, model and pure functions put together, and what there is to say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config.job import Job
from paceline.config.plan import build_plan
from paceline.errors import UserError
from paceline.worker import devices

if TYPE_CHECKING:
    from paceline.core.replica import Core


def build(job: Job) -> Core:
    """Data, model and pure functions of a job."""
    from paceline.core.flat import build_template
    from paceline.core.replica import build_core
    from paceline.data import build_source, hold_out
    from paceline.data.batches import image_shape
    from paceline.models import build_model

    experiment, own = job.experiment, job.experiment.model
    if (
        0 < own.width < 8
        and not own.build
        and (own.layout == "imagenet" or own.shortcut.startswith("B"))
    ):
        raise UserError(
            f"model.width is {own.width}; with projection shortcuts it must be 8 or more: oneDNN in TensorFlow 2.21 writes beyond its "
            "memory in the gradient of strided 1x1 convolutions of 4 channels"
        )
    source = build_source(experiment.data)
    train, validation = hold_out(source, experiment.data.validation)
    splits = {"train": train, "test": source.test} | (
        {"validation": validation} if validation else {}
    )
    plan = build_plan(experiment, train.size, job.run.stop_at, job.run.profiled or ())
    num_classes = experiment.model.num_classes or len(source.classes)
    if num_classes < len(source.classes):
        raise UserError(
            f"model.num-classes is {num_classes}, but the data has {len(source.classes)} classes; give that or more"
        )
    model = build_model(experiment, image_shape(experiment.data, source), num_classes)
    return build_core(experiment, plan, source, splits, build_template(model), num_classes)


def facts(core: Core) -> dict[str, Any]:
    """What a resumed run must find again in its data, and what prediction must know of it when it is gone."""
    sizes = {name: split.size for name, split in core.splits.items()}
    shape = list(core.source.image_shape) if core.source.image_shape else None
    return {
        "train": core.num_examples,
        **sizes,
        "classes": list(core.source.classes),
        "image_shape": shape,
    }


def derived(job: Job, core: Core) -> str:
    """Every derived number in one line."""
    e, sizes, workers = job.experiment, core.layout.sizes(), job.place.workers
    servers = f" + {len(job.cluster.ps)} ps" if job.cluster.ps else ""
    tests = ", ".join(f"{split.size:,} {name}" for name, split in core.splits.items())
    return (
        f"{core.num_examples:,} train, {tests} examples of {len(core.source.classes)} classes · {sizes['params']:,} parameters · "
        f"{workers} worker{'s' * (workers > 1)}{servers} · {e.replicas} replicas x {e.replica_batch_size} = "
        f"global batch {e.global_batch_size} · {e.threads_per_replica} thread{'s' * (e.threads_per_replica > 1)} per replica, "
        f"{devices.side_by_side(job)} side by side · {core.plan.steps_per_epoch:,} steps per epoch, {core.plan.total_steps:,} in all"
    )


def describe(job: Job) -> str:
    """Every derived number and the table of layers, for --dry-run."""
    devices.configure(job)
    core = build(job)
    rows = [("layer", "kind", "output", "parameters")]
    for layer in core.template.model.layers:
        rows.append((layer.name, type(layer).__name__, _shape(layer), f"{layer.count_params():,}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        + f"  {row[3]:>12}"
        for row in rows
    ]
    return "\n".join([derived(job, core), "", *lines])


def _shape(layer: Any) -> str:
    shape = getattr(getattr(layer, "output", None), "shape", None)
    return " x ".join(str(size) for size in shape[1:]) if shape else ""


def example_pictures(core: Core, count: int = 25) -> np.ndarray:
    """What the model sees in its first step, stretched to 0 to 255."""
    import tensorflow as tf

    images = core.batch(tf.constant(0, tf.int64), tf.constant(0, tf.int64)).images.numpy()[:count]
    low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
    return ((images - low) / np.maximum(high - low, 1e-6) * 255).astype(np.uint8)


def pictures_of(core: Core, split: str, indices: np.ndarray) -> np.ndarray:
    """Examples of a split as they are evaluated, before scaling."""
    import tensorflow as tf

    from paceline.data.batches import evaluation_pictures

    where = tf.constant(indices, tf.int64)
    pictures = evaluation_pictures(core.experiment.data, core.splits[split].read(where)[0], where)
    return np.clip(pictures.numpy(), 0, 255).astype(np.uint8)
