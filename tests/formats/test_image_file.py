"""The facts of an image, and what cannot be trained on."""

import pytest
import tensorflow as tf

from image_folders import draw
from paceline.formats.image_file import inspect_image


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("P", "GIF"), ("L", "BMP"), ("RGB", "WEBP")],
)
def test_facts_of_an_image(mode, kind):
    assert inspect_image(draw(1, mode, kind)) == (kind, 30, 40)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9, 0.97])
def test_an_image_that_is_cut_is_refused_as_tensorflow_refuses_it(kind, share):
    complete = draw(1, kind=kind, size=(200, 160))
    cut = complete[: int(len(complete) * share)]
    tf.io.decode_image(complete)
    with pytest.raises(tf.errors.OpError):
        tf.io.decode_image(cut)
    with pytest.raises(ValueError, match=r"."):
        inspect_image(cut)


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"GIF89a" + bytes(50), b"\xff\xd8\xff" + bytes(100)]
)
def test_what_is_not_an_image_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        inspect_image(data)
