"""Images of a run's data as TensorBoard and the report show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from paceline.maths.replica import Core


def example_images(core: Core, count: int = 25) -> np.ndarray:
    """Return the images of the first step as the model gets them, stretched to 0 to 255."""
    import tensorflow as tf

    first = tf.constant(0, tf.int64)
    images: npt.NDArray[np.float32] = core.batch(first, first).images.numpy()[:count]
    low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
    stretched: npt.NDArray[np.float32] = (images - low) / np.maximum(high - low, 1e-6) * 255
    return stretched.astype(np.uint8)


def evaluated_images(core: Core, split: str, indices: np.ndarray) -> np.ndarray:
    """Return examples of a split as they are evaluated, before scaling."""
    import tensorflow as tf

    from paceline.data.batches import evaluation_images

    where = tf.constant(indices, tf.int64)
    images: npt.NDArray[np.float32] = evaluation_images(
        core.experiment, core.splits[split].read(where)[0], where
    ).numpy()
    return np.clip(images, 0, 255).astype(np.uint8)


def thumbnails(images: np.ndarray, side: int = 96) -> np.ndarray:
    """Return the images, no larger than needed to recognise what they show."""
    from PIL import Image

    height, width, channels = images.shape[1:]
    scale = side / max(height, width)
    if scale >= 1:
        return images
    size = round(width * scale), round(height * scale)
    small = [np.asarray(Image.fromarray(image.squeeze()).resize(size)) for image in images]
    return np.stack(small).reshape(len(images), size[1], size[0], channels)
