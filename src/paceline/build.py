"""Job -> core: the data, the model and the pure functions of an experiment.

Every process that computes replicas builds its own core from the job.
"""

from __future__ import annotations

from dataclasses import replace

import keras
import tensorflow as tf

from paceline.data.build_source import build_source
from paceline.data.images import image_shape
from paceline.data.source import Split, hold_out
from paceline.engines import devices
from paceline.errors import UserError
from paceline.experiment.data import Views
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json
from paceline.experiment.plan import build_plan
from paceline.job import Job
from paceline.maths import replica
from paceline.maths.template import build_template
from paceline.models.accelerate import accelerated
from paceline.models.build import build_model
from paceline.run_folder.folder import RunFolder


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
            "early-stopping.patience is above 0, but the data has no validation split; give "
            "--data.validation N to hold out N training examples"
        )
    plan = build_plan(experiment, train.size, job.run.stop_at)
    num_classes = experiment.model.num_classes or len(source.classes)
    if num_classes < len(source.classes):
        raise UserError(
            f"model.num-classes is {num_classes}, but the data has {len(source.classes)} classes; "
            "give that or more"
        )
    experiment = _resolve(experiment, train, num_classes, stored)
    own = replace(experiment.model, build=code.get("model.build", experiment.model.build))
    shape = image_shape(experiment, source)
    model = build_model(replace(experiment, model=own), shape, num_classes)
    _check_model(experiment, model)
    template = build_template(model, accelerated(experiment, model, devices.uses_gpus(job)))
    return replica.build_core(experiment, plan, source, splits, template, num_classes, views)


def own_code(job: Job) -> dict[str, str]:
    """Return the user's own functions that decide the numbers, here or copied in the run folder."""
    if not job.experiment.model.build and not job.experiment.data.build:
        return {}
    from paceline.run_folder.code_copies import locate, specs_of

    return {name: locate(job, name, spec) for name, spec in specs_of(job.experiment)}


def _resolve(experiment: Experiment, train: Split, num_classes: int, stored: Json) -> Experiment:
    """Return the experiment with numbers in place of auto, balanced and application.

    `stored` are the facts of a run's data, which have the numbers if they were computed before.
    """
    scaling, loss = experiment.scaling, experiment.loss
    if scaling.mean != "auto" and scaling.method != "application" and not loss.class_weights:
        return experiment
    from paceline.data.statistics import with_numbers, with_stored_means
    from paceline.models.fine_tuning import with_own_scaling

    scaling = with_stored_means(scaling, stored)
    experiment = with_own_scaling(replace(experiment, scaling=scaling))
    return with_numbers(experiment, train, num_classes, stored)


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
                f"({str(error).strip().splitlines()[0]}); use a model that ends with global pooling"
            ) from error
