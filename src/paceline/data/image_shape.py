"""The shape of the images that the model sees, after checking that the settings fit the source."""

from __future__ import annotations

from paceline.data.source import Source
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Experiment

Shape = tuple[int, int, int]
"""Height, width, channels."""


def image_shape(experiment: Experiment, source: Source) -> Shape:
    """Return the shape of the images that the model sees."""
    settings = experiment.augment
    if source.image_shape is None and not experiment.data.image_size:
        raise UserError(
            "data.image-size is 0, but these images have any size; give one, such as "
            "--data.image-size 224"
        )
    for name, pixels in (("padding", settings.padding), ("crop-size", settings.crop_size)):
        if source.image_shape is None and pixels:
            raise UserError(
                f"augment.{name} is {pixels}; images of any size are cropped by augment.crop "
                "instead: use 0"
            )
    for name, strength in (("saturation", settings.saturation), ("hue", settings.hue)):
        if strength and source.image_shape and source.image_shape[2] != 3:
            raise UserError(
                f"augment.{name} is {strength}, but these images have {source.image_shape[2]} "
                "channels; it is for colors: use 0"
            )
    if source.image_shape is not None and settings.padding_mode == "reflect":
        _check_reflected(settings, source.image_shape)
    return model_shape(experiment, source.image_shape)


def _check_reflected(settings: Augmentation, stored: Shape) -> None:
    sides = {side: (settings.crop_size or side) - side for side in stored[:2]}
    for side, beyond in {**dict.fromkeys(settings.sizes, 0), **sides}.items():
        most = settings.padding + max(0, beyond - beyond // 2)
        if most >= side:
            raise UserError(
                f"augment.padding-mode reflect cannot add {most} pixels to images of {side} "
                f"pixels; use {side - 1} or fewer"
            )


def model_shape(experiment: Experiment, stored: Shape | None) -> Shape:
    """Return the shape that the model sees of images of shape `stored`; None: encoded images."""
    size = experiment.data.image_size
    height, width, channels = stored or (size, size, 3)
    side = size or experiment.augment.crop_size
    return side or height, side or width, channels
