"""What the settings and a source must have in common."""

import numpy as np
import pytest

from paceline.data.image_shape import image_shape
from paceline.data.source import Source, Split, in_memory
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Data, Experiment


@pytest.mark.parametrize(
    ("size", "padding", "line"), [(0, 0, "data.image-size is 0"), (224, 4, "augment.padding is 4")]
)
def test_what_encoded_images_need_is_said(size, padding, line):
    split = Split(1, lambda indices: (indices, indices))
    with pytest.raises(UserError, match=line):
        image_shape(
            Experiment(data=Data(image_size=size), augment=Augmentation(padding=padding)),
            Source(split, split, ("a",), None),
        )


def test_colors_of_gray_images_are_refused():
    split = in_memory(np.zeros([4, 8, 8, 1], np.uint8), np.zeros(4, int))
    for change in ({"saturation": 0.5}, {"hue": 0.1}):
        with pytest.raises(UserError, match="these images have 1 channels; it is for colors"):
            image_shape(
                Experiment(augment=Augmentation(**change)), Source(split, split, ("a",), (8, 8, 1))
            )
