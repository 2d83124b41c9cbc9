"""The preprocessing of a run in numbers, for its exports: from a file to the model's input.

docs/preprocessing.md explains every step and repeats them in Pillow and NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.experiment.experiment import Experiment

DECODE = (
    "the whole image as 8-bit RGB; JPEG by libjpeg's accurate integer DCT with smooth chroma and "
    "turned upright by its EXIF orientation; transparency dropped (in a GIF: black), the upper 8 "
    "of 16 bits, the first frame of several"
)
FILTER = "bilinear with antialiasing (the triangle is widened by the scale)"
GREY = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class Scale:
    """The last step: pixels to the model's input."""

    kind: str
    mean: str | tuple[float, ...]
    std: str | tuple[float, ...]


@dataclass(frozen=True)
class Preprocessing:
    """The steps in their order; None where there is no such step."""

    decode: str
    crop: tuple[int, int]
    resize: tuple[int, int]
    filter: str
    round: bool
    grey: tuple[float, float, float] | None
    resize_again: tuple[int, int] | None
    window: tuple[int, int, int, int] | None
    """Top, left, height and width."""
    padding: str
    scale: Scale


def describe_preprocessing(
    experiment: Experiment, stored: tuple[int, int, int] | None
) -> Preprocessing:
    """Return the steps of an experiment.

    `stored` is the shape of the images in the data source, None if they are encoded in any size.
    """
    size, augment, scaling = experiment.data.image_size, experiment.augment, experiment.scaling
    resize_again, window = None, None
    if stored and (crop := augment.crop_size):
        top, left = (-((crop - side) // 2) for side in stored[:2])
        window = (top, left, crop, crop)
    elif stored and size and stored[:2] != (size, size):
        height, width = stored[:2]
        tall = max(size, round(height * size / width))
        wide = max(size, round(width * size / height))
        resize_again = (tall, wide)
        window = ((tall - size) // 2, (wide - size) // 2, size, size)
    channels = stored[2] if stored else 3
    return Preprocessing(
        decode=DECODE,
        crop=(1, 1) if stored else (size, (size * 8 + 3) // 7),
        resize=stored[:2] if stored else (size, size),
        filter=FILTER,
        round=stored is not None,
        grey=GREY if stored and channels == 1 else None,
        resize_again=resize_again,
        window=window,
        padding="reflect" if augment.padding_mode == "reflect" else "constant",
        scale=Scale(scaling.method, scaling.mean[:channels], scaling.std[:channels]),
    )
