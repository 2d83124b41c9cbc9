"""Operations of a whole training on CIFAR-10, from the Keras model and the plan.

`flops` counts by hand and imports nothing of Paceline, because other contenders import it, too.
"""

from dataclasses import replace

import keras

from paceline.build import build_model
from paceline.experiment.experiment import Experiment
from paceline.experiment.plan import build_phases, build_plan


def training_flops_of(experiment: Experiment, train_size: int) -> float:
    """Return the operations of a whole training on CIFAR images, in all its image sizes.

    A layer counts as in `flops.training_flops`, and a frozen one forward only.
    """
    plan = build_plan(experiment, train_size)
    phases = build_phases(experiment, plan)
    ends = [phase.first for phase in phases[1:]] + [plan.total_steps]
    total = 0.0
    for phase, end in zip(phases, ends, strict=True):
        side = phase.image_size or experiment.augment.crop_size or 32
        images = (end - phase.first) * experiment.global_batch_size
        total += images * _flops_of_an_image(experiment, side)
    return total


def _flops_of_an_image(experiment: Experiment, side: int) -> int:
    model = build_model(replace(experiment, precision="float32"), (side, side, 3), 10)
    total = 0
    for layer in model.layers:
        if not isinstance(layer, keras.layers.Conv2D | keras.layers.Dense):
            continue
        pixels = 1
        for length in layer.output.shape[1:-1]:
            pixels *= length
        passes = 1 if layer.name.startswith("whiten") else 3
        total += passes * 2 * pixels * layer.kernel.shape.num_elements()
    return total
