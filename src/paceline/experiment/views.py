"""Test-time views: the versions of an image whose predictions are averaged. No TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Views = Literal["none", "mirror", "shifts"]
"""none: the image. mirror: also its mirror image. shifts: also both of them, shifted by one pixel
up and left, and down and right."""


@dataclass(frozen=True)
class View:
    """A version of an image, and its part of the mean."""

    shift: int
    """Pixels by which it is moved down and right; the edge is filled with the mirror image."""
    mirrored: bool
    share: float


def views_of(views: Views) -> tuple[View, ...]:
    """Return the views. Of `shifts`, the two that are not shifted make up half of the mean."""
    if views == "none":
        return (View(0, False, 1.0),)
    if views == "mirror":
        return tuple(View(0, mirrored, 1 / 2) for mirrored in (False, True))
    return tuple(
        View(shift, mirrored, 1 / 4 if shift == 0 else 1 / 8)
        for shift in (0, -1, 1)
        for mirrored in (False, True)
    )
