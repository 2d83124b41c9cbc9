"""ResNets for large pictures: published sizes, all three versions, and that the CIFAR ones are
still what they were."""

import math

import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment, Model
from paceline.models.resnet import build_resnet

PUBLISHED = [  # torchvision's; 200 and v2 are timm's resnet200 and BiT's R50x1
    ("v1", 18, 11_689_512),
    ("v1", 34, 21_797_672),
    ("v1", 50, 25_557_032),
    ("v1.5", 50, 25_557_032),
    ("v2", 50, 25_549_352),
    ("v1.5", 101, 44_549_160),
    ("v1.5", 152, 60_192_808),
    ("v1.5", 200, 64_673_832),
]


@pytest.fixture
def without_values():
    """Variables made here have shapes but no memory."""
    with keras.StatelessScope(initialize_variables=False):
        yield
    global_state.set_global_attribute("uninitialized_variables", [])


@pytest.mark.parametrize(("version", "depth", "count"), PUBLISHED)
def test_parameters_are_as_many_as_published(without_values, version, depth, count):
    model = build_resnet(
        Model(layout="imagenet", depth=depth, version=version), (224, 224, 3), 1000
    )
    assert sum(math.prod(variable.shape) for variable in model.trainable_variables) == count
    assert model.output_shape == (None, 1000)


def test_the_picture_is_halved_five_times_and_channels_double(without_values):
    model = build_resnet(Model(layout="imagenet", depth=50, version="v1.5"), (224, 224, 3), 1000)
    last = [
        f"stage{stage}_block{blocks}_relu" for stage, blocks in ((1, 3), (2, 4), (3, 6), (4, 3))
    ]
    shapes = [model.get_layer(name).output.shape[1:] for name in ("stem_relu", "stem_pool", *last)]
    assert shapes == [
        (112, 112, 64),
        (56, 56, 64),
        (56, 56, 256),
        (28, 28, 512),
        (14, 14, 1024),
        (7, 7, 2048),
    ]


@pytest.mark.parametrize(
    ("version", "first", "second"), [("v1", 2, 1), ("v1.5", 1, 2), ("v2", 1, 2)]
)
def test_versions_stride_in_their_own_convolution(without_values, version, first, second):
    model = build_resnet(Model(layout="imagenet", depth=50, version=version), (64, 64, 3), 10)
    strides = [model.get_layer(f"stage3_block1_conv{number}").strides for number in (1, 2, 3)]
    assert strides == [(first, first), (second, second), (1, 1)]


def test_padding_is_alike_on_both_sides_of_strided_convolutions():
    model = build_resnet(Model(layout="imagenet", depth=18, width=1), (32, 32, 3), 2)
    conv = model.get_layer("stem_conv")
    conv.kernel.assign(np.ones(conv.kernel.shape, np.float32))
    stem = keras.Model(model.input, conv.output)(np.ones((1, 32, 32, 3), np.float32)).numpy()[
        0, :, :, 0
    ]
    assert stem[0, 0] == 3 * 4 * 4  # three pixels above and to the left are padding
    assert stem[-1, -1] == 3 * 5 * 5  # two below and to the right: 31 + 3 of 32 + 3 are seen


def test_zero_gamma_makes_blocks_begin_as_their_shortcuts():
    model = build_resnet(
        Model(layout="imagenet", depth=50, version="v1.5", width=1, zero_gamma=True), (32, 32, 3), 2
    )
    zero = {
        layer.name for layer in model.layers if hasattr(layer, "gamma") and not np.any(layer.gamma)
    }
    assert zero == {
        f"stage{stage}_block{block}_norm3"
        for stage, blocks in enumerate((3, 4, 6, 3), 1)
        for block in range(1, blocks + 1)
    }


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            {"layout": "imagenet", "depth": 56},
            "model.depth is 56; the imagenet layout has 18, 34, 50, 101, 152, 200 layers: "
            "50 is nearest",
        ),
        ({"depth": 18}, "6n+2 layers: 14 or 20 is nearest; --model.layout imagenet has this depth"),
        (
            {"depth": 21},
            "model.depth is 21; a basic CIFAR ResNet has 6n+2 layers: 20 or 26 is nearest",
        ),
        ({"version": "v2", "zero_gamma": True}, "model.zero-gamma is for v1 and v1.5"),
        ({"width": -1}, "model.width is -1"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(model, line):
    with pytest.raises(UserError) as caught:
        Experiment(model=Model(**model))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
