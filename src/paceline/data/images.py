"""Images of one size, as stored -> cropped and resized. `formats.encoded.prepare` is its twin for
encoded images of any size."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from paceline.data.augment.crop import crop_and_flip, crop_center, resize
from paceline.data.draws import Draws
from paceline.experiment.experiment import Experiment


def train_images(
    experiment: Experiment, raw: tf.Tensor, draws: Draws, image_size: int
) -> tf.Tensor:
    """Return random crops. `image_size` is a side other than the usual one, or 0."""
    settings = experiment.augment
    if image_size:
        small = tf.saturate_cast(tf.round(resize(raw, image_size)), tf.uint8)
        return crop_and_flip(replace(settings, crop_size=0), small, draws)
    return resize(crop_and_flip(settings, raw, draws), experiment.data.image_size)


def evaluation_images(experiment: Experiment, raw: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Return central crops."""
    if experiment.augment.crop_size:
        return crop_center(experiment.augment, raw)
    return resize(raw, experiment.data.image_size)
