"""Job -> core: builds data, model and pure functions, and describes them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.engines import devices
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Model
from paceline.experiment.plan import build_plan
from paceline.experiment.user_code import code_digest
from paceline.experiment.views import Views
from paceline.job import Job
from paceline.runs.code_copies import here_or_copied, specs_of
from paceline.runs.folder import RunFolder

if TYPE_CHECKING:
    import keras

    from paceline.maths.replica import Core


def build_core_for(job: Job, views: Views = "none") -> Core:
    """Return the core of a job: its data, its model and its pure functions.

    Evaluation takes the mean over `views` of an image.
    """
    from paceline.data.batches import image_shape
    from paceline.data.build import build_source, hold_out
    from paceline.data.statistics import with_numbers, with_stored_means
    from paceline.kernels.rewrite import accelerated
    from paceline.maths.replica import build_core
    from paceline.maths.template import build_template
    from paceline.models.applications import with_own_scaling
    from paceline.models.build import build_model

    code, stored, experiment = own_code(job), _stored_facts(job), job.experiment
    _check_width(experiment.model)
    source = build_source(replace(experiment.data, build=code.get("data.build", "")))
    train, validation = hold_out(source, experiment.data.validation)
    splits = {"train": train, "test": source.test} | (
        {"validation": validation} if validation else {}
    )
    plan = build_plan(experiment, train.size, job.run.stop_at, job.run.profiled or ())
    num_classes = experiment.model.num_classes or len(source.classes)
    if num_classes < len(source.classes):
        raise UserError(
            f"model.num-classes is {num_classes}, but the data has {len(source.classes)} classes; "
            "give that or more"
        )
    data = with_stored_means(experiment.data, stored)
    experiment = with_own_scaling(replace(experiment, data=data))
    experiment = with_numbers(experiment, train, num_classes, stored)
    own = replace(experiment.model, build=code.get("model.build", experiment.model.build))
    model = build_model(replace(experiment, model=own), image_shape(data, source), num_classes)
    _check_sizes(data, model)
    template = build_template(model, accelerated(experiment, model, devices.uses_gpus(job)))
    return build_core(experiment, plan, source, splits, template, num_classes, views)


def _stored_facts(job: Job) -> dict[str, Any]:
    """Return what the run folder knows of the data; nothing if there is no run yet."""
    run = RunFolder(job.run.run_dir) if job.run.run_dir else None
    return run.data_facts() if run and run.exists() else {}


def _check_sizes(data: Data, model: keras.Model) -> None:
    """Check that the model accepts images of every size that the training has."""
    import tensorflow as tf

    for size in data.sizes:
        try:
            model.call(tf.zeros([1, size, size, model.input_shape[-1]]), training=False)
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            raise UserError(
                f"data.sizes has {size}, but the model does not accept images of {size} pixels "
                f"({str(error).strip().splitlines()[0]}); use a model that ends with global pooling"
            ) from error


def _check_width(model: Model) -> None:
    projects = model.layout == "imagenet" or model.shortcut.startswith("B")
    if 0 < model.width < 8 and not model.build and projects:
        raise UserError(
            f"model.width is {model.width}; with projection shortcuts it must be 8 or more: oneDNN "
            "in TensorFlow 2.21 writes beyond its memory in the gradient of strided 1x1 "
            "convolutions of 4 channels"
        )


def data_facts(job: Job, core: Core) -> dict[str, Any]:
    """Return what a resumed run compares with its data, and what prediction needs without it."""
    from paceline.data.statistics import computed_facts

    sizes = {name: split.size for name, split in core.splits.items()}
    shape = list(core.source.image_shape) if core.source.image_shape else None
    facts: dict[str, Any] = {
        "train": core.num_examples,
        **sizes,
        "classes": list(core.source.classes),
        "image_shape": shape,
    }
    facts |= {"content": core.source.digest} if core.source.digest else {}
    facts |= {"file_sizes": core.source.file_sizes} if core.source.file_sizes else {}
    return facts | computed_facts(job.experiment, core.experiment)


def own_code(job: Job) -> dict[str, str]:
    """Return the user's own functions that decide the numbers, here or copied in the run folder."""
    specs = dict(specs_of(job.experiment))
    return {name: locate(job, name, spec) for name, spec in specs.items()}


def locate(job: Job, name: str, spec: str) -> str:
    """Return where the code of a function is: here, or copied in the run folder."""
    if not job.run.run_dir:
        return spec
    return here_or_copied(RunFolder(job.run.run_dir).path, name, spec, job.run.trust_code)


def code_digests(job: Job) -> dict[str, str]:
    """Return digests of the code of the user's own functions that decide the numbers."""
    return {name: code_digest(spec) for name, spec in own_code(job).items()}


def summary_line(job: Job, core: Core) -> str:
    """Return every derived number in one line."""
    e, sizes = job.experiment, core.layout.sizes()
    workers, threads = job.place.workers, e.threads_per_replica
    servers = f" + {len(job.cluster.ps)} ps" if job.cluster.ps else ""
    frozen = int(core.template.fixed_mask().sum())
    parameters = f"{sizes['params']:,} parameters" + (f", {frozen:,} more frozen" if frozen else "")
    tests = ", ".join(f"{split.size:,} {name}" for name, split in core.splits.items())
    return (
        f"{core.num_examples:,} train, {tests} examples of {len(core.source.classes)} classes · "
        f"{parameters} · {workers} worker{'s' * (workers > 1)}{servers} · "
        f"{e.replicas} replicas x {e.replica_batch_size} = global batch {e.global_batch_size} · "
        f"{threads} thread{'s' * (threads > 1)} per replica, {devices.side_by_side(job)} side by "
        f"side · kernels {core.template.kernels} · {core.plan.steps_per_epoch:,} steps per epoch, "
        f"{core.plan.total_steps:,} in all"
    )


def numbers(job: Job, core: Core) -> dict[str, Any]:
    """Return every derived number by name."""
    e = job.experiment
    return {
        "examples": {"train": core.num_examples}
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


def describe(job: Job) -> dict[str, Any]:
    """Return every derived number, and with the table of layers as text, for --dry-run."""
    devices.configure(job)
    core = build_core_for(job)
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
