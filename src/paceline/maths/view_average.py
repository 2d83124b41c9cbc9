"""The mean of a model's outputs over views of an image (`--views`), in operations of Keras.

It is for tensors as well as for the symbols of a Keras graph.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import KerasTensor as Tensor
from keras import ops

from paceline.experiment.data import Views


class View(NamedTuple):
    """A version of an image, and its part of the mean."""

    shift: int
    """Pixels by which it is moved down and right; the edge is filled with the mirror image."""
    mirrored: bool
    share: float


VIEWS: dict[Views, tuple[View, ...]] = {
    "none": (View(0, False, 1.0),),
    "mirror": (View(0, False, 1 / 2), View(0, True, 1 / 2)),
    "shifts": tuple(
        View(shift, mirrored, 1 / 4 if shift == 0 else 1 / 8)
        for shift in (0, -1, 1)
        for mirrored in (False, True)
    ),
}


def mean_over_views(call: Callable[[Tensor], Tensor], images: Tensor, views: Views) -> Tensor:
    """Return the mean of `call` over the views of images [n, h, w, c]; added in their order."""
    if views == "none":
        return call(images)
    total = None
    for view in VIEWS[views]:
        outputs = call(see(images, view)) * view.share
        total = outputs if total is None else total + outputs
    return total


def see(images: Tensor, view: View) -> Tensor:
    """Return the images as one view shows them."""
    if view.shift:
        height, width = images.shape[1:3]
        padded = ops.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], mode="reflect")
        first = 1 - view.shift
        images = padded[:, first : first + height, first : first + width]
    return ops.flip(images, axis=2) if view.mirrored else images
