"""Job -> core: the data, the model and the pure functions of an experiment; its numbers in a line.

Every process that computes replicas builds its own core from the job.
"""

from dataclasses import replace
from importlib import import_module

import keras
import tensorflow as tf

from paceline.data.build_source import build_source
from paceline.data.images import image_shape
from paceline.data.source import Split, hold_out
from paceline.engines import devices
from paceline.errors import UserError, first_line
from paceline.experiment.data import Views
from paceline.experiment.experiment import Experiment, application_of
from paceline.experiment.fields import Json
from paceline.experiment.plan import build_plan
from paceline.job import Job
from paceline.kernels.library import choose_kernels
from paceline.maths import replica
from paceline.maths.template import Template, build_template
from paceline.messages import Start
from paceline.models.accelerate import accelerate
from paceline.run_folder.folder import RunFolder

LAYOUTS = {
    "cifar": ("paceline.models.resnet", "build_resnet"),
    "imagenet": ("paceline.models.resnet", "build_resnet"),
    "speedrun": ("paceline.models.speedrun", "build_speedrun"),
}
"""By `model.layout`: the function that builds the network."""
GIVEN = ("paceline.models.fine_tuning", "build_given")
"""Builds the network that `model.build` names, or that of the weights to start from."""


def build_core(job: Job, views: Views = "none") -> replica.Core:
    """Return the core of a job. Evaluation averages the predictions over `views` of an image."""
    run = RunFolder(job.run.run_dir) if job.run.run_dir else None
    stored = run.data_facts() if run and run.exists() else {}
    code, experiment = own_code(job), job.experiment
    data = replace(experiment.data, build=code.get("data.build", ""))
    source = build_source(data, experiment.records)
    train, validation = hold_out(source, experiment.data.validation)
    splits = {"train": train, "test": source.test}
    if validation:
        splits["validation"] = validation
    elif experiment.early_stopping.patience:
        raise UserError(
            "early-stopping.patience is above 0, but the data has no validation split; pass "
            "--data.validation N to hold out N training examples"
        )
    plan = build_plan(experiment, train.size, job.run.stop_at, job.run.act_every)
    num_classes = experiment.model.num_classes or len(source.classes)
    if num_classes < len(source.classes):
        raise UserError(
            f"model.num-classes is {num_classes}, but the data has {len(source.classes)} classes; "
            "use this number or more"
        )
    experiment = _resolve(experiment, train, num_classes, stored)
    own = replace(experiment.model, build=code.get("model.build", experiment.model.build))
    shape = image_shape(experiment, source)
    with_own = replace(experiment, model=own)
    template = build_network(with_own, shape, num_classes, bool(devices.own_share(job).gpus))
    _check_model(experiment, template.model)
    return replica.build_core(experiment, plan, source, splits, template, num_classes, views)


def own_code(job: Job) -> dict[str, str]:
    """Return the user's own functions that decide the numbers, here or copied in the run folder."""
    if not job.experiment.model.build and not job.experiment.data.build:
        return {}
    from paceline.run_folder.code_copies import locate, specs_of

    return {name: locate(job, name, spec) for name, spec in specs_of(job.experiment)}


def _resolve(experiment: Experiment, train: Split, num_classes: int, stored: Json) -> Experiment:
    """Return the experiment with numbers in place of auto, balanced and application, if possible
    those `stored` with the run's data."""
    scaling, loss = experiment.scaling, experiment.loss
    if scaling.mean != "auto" and scaling.method != "application" and not loss.class_weights:
        return experiment
    from paceline.data.statistics import with_numbers, with_stored_means
    from paceline.models.fine_tuning import with_own_scaling

    scaling = with_stored_means(scaling, stored)
    experiment = with_own_scaling(replace(experiment, scaling=scaling))
    return with_numbers(experiment, train, num_classes, stored)


def build_network(
    experiment: Experiment, image_shape: tuple[int, int, int], num_classes: int, uses_gpus: bool
) -> Template:
    """Return an experiment's model as a template, on Paceline's kernels if it uses them. They take
    a model of float32, and round images themselves."""
    if choose_kernels(experiment, uses_gpus) != "own":
        return build_template(build_model(experiment, image_shape, num_classes))
    model = build_model(replace(experiment, precision="float32"), image_shape, num_classes)
    return build_template(model, accelerate(model), experiment.precision == "bfloat16")


def build_model(
    experiment: Experiment, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """Return a model whose initial weights depend on the experiment alone."""
    keras.utils.set_random_seed(experiment.seed)
    precision, model = experiment.precision, experiment.model
    keras.config.set_dtype_policy("float32" if precision == "float32" else f"mixed_{precision}")
    is_given = model.build or application_of(model)
    module, name = GIVEN if is_given else LAYOUTS[model.layout]
    build = getattr(import_module(module), name)
    built: keras.Model = build(model, image_shape, num_classes, experiment.seed)
    if model.freeze:
        from paceline.models.fine_tuning import freeze_layers

        freeze_layers(built, model.freeze)
    return built


def _check_model(experiment: Experiment, model: keras.Model) -> None:
    """Check that the model accepts images of every size that the training has, and its width."""
    settings = experiment.model
    projects = settings.layout == "imagenet" or settings.shortcut.startswith("B")
    if 0 < settings.width < 8 and not settings.build and projects:
        raise UserError(
            f"model.width is {settings.width}; with projection shortcuts it must be 8 or more: "
            "oneDNN in TensorFlow 2.21 writes beyond its memory in the gradient of strided 1x1 "
            "convolutions of 4 channels"
        )
    for size in experiment.augment.sizes:
        try:
            model.call(tf.zeros([1, size, size, model.input_shape[-1]]), training=False)
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            raise UserError(
                f"augment.sizes has {size}, but the model does not accept images of {size} pixels "
                f"({first_line(error)}); use a model that ends with global pooling"
            ) from error


def summary_line(job: Job, core: replica.Core) -> str:
    """Return every derived number in one line."""
    e, sizes = job.experiment, core.layout.sizes()
    workers, threads = job.place.workers, e.threads_per_replica
    servers = f" + {len(job.cluster.ps)} ps" if job.cluster.ps else ""
    frozen = int(core.template.fixed_mask().sum())
    parameters = f"{sizes['params']:,} parameters" + (f", {frozen:,} more frozen" if frozen else "")
    bad = f" (bad ones left out: {len(core.source.left_out):,})" if core.source.left_out else ""
    tests = ", ".join(f"{split.size:,} {name}" for name, split in core.splits.items())
    return (
        f"{core.train.size:,} train, {tests} examples of {len(core.source.classes)} classes{bad} · "
        f"{parameters} · {workers} worker{'s' * (workers > 1)}{servers} · "
        f"{e.replicas} replicas x {e.replica_batch_size} = global batch {e.global_batch_size} · "
        f"{threads} thread{'s' * (threads > 1)} per replica, {devices.own_share(job)} · "
        f"kernels {core.template.kernels} · bits: {core.template.bits} · "
        f"{core.plan.steps_per_epoch:,} steps per epoch, "
        f"{core.plan.total_steps:,} in all"
    )


def start_message(
    job: Job, core: replica.Core, first_step: int, who: str = "", lease: int = 0
) -> Start:
    """Return the message that training begins or continues."""
    plan, line = core.plan, who + summary_line(job, core)
    return Start(plan.total_steps, plan.steps_per_epoch, first_step, line, lease)
