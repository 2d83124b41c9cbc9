"""The preprocessing of a run in numbers, for the metadata of its exports: from a file to the
model's input. docs/preprocessing.md explains every step and repeats them in Pillow and NumPy.
"""

from __future__ import annotations

from typing import Any

from paceline.experiment.experiment import Experiment

DECODE = (
    "the whole image as 8-bit RGB; JPEG by libjpeg's accurate integer DCT with smooth chroma and "
    "turned upright by its EXIF orientation; transparency dropped (in a GIF: black), the upper 8 "
    "of 16 bits, the first frame of several"
)


def describe_preprocessing(
    experiment: Experiment, stored: tuple[int, int, int] | None
) -> dict[str, Any]:
    """Return the steps in their order; None where there is no such step.

    `stored` is the shape of the images in the data source, None if they are encoded in any size.
    """
    size, augment, scaling = experiment.data.image_size, experiment.augment, experiment.scaling
    short = (size * 8 + 3) // 7
    steps: dict[str, Any] = {
        "decode": DECODE,
        "crop": [1, 1] if stored else [size, short],
        "resize": list(stored[:2]) if stored else [size, size],
        "filter": "bilinear with antialiasing (the triangle is widened by the scale)",
        "round": stored is not None,
        "grey": [0.2989, 0.587, 0.114] if stored and stored[2] == 1 else None,
        "resize_again": None,
        "window": None,
    }
    if stored and augment.crop_size:
        top, left = (-((augment.crop_size - side) // 2) for side in stored[:2])
        steps["window"] = [top, left, augment.crop_size, augment.crop_size]
    elif stored and size and stored[:2] != (size, size):
        height, width = stored[:2]
        tall = max(size, round(height * size / width))
        wide = max(size, round(width * size / height))
        steps["resize_again"] = [tall, wide]
        steps["window"] = [(tall - size) // 2, (wide - size) // 2, size, size]
    steps["padding"] = "reflect" if augment.padding_mode == "reflect" else "constant"
    channels = stored[2] if stored else 3
    scale = {"kind": scaling.method, "mean": scaling.mean[:channels], "std": scaling.std[:channels]}
    return steps | {"scale": {name: _plain(value) for name, value in scale.items()}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
