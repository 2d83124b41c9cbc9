"""Images of one size are resized."""

import numpy as np
import tensorflow as tf
from PIL import Image

from encoded_images import SIZE, drawn
from paceline.data.batches import build_eval_batches, build_train_batches
from paceline.data.image_shape import image_shape
from paceline.data.source import Source, Split
from paceline.experiment.experiment import Data, Experiment, Scaling
from paceline.maths.losses import build_targets
from tiny import number


def test_small_images_of_one_size_are_enlarged():
    pixels = np.stack([np.asarray(drawn(30, 20, k)) for k in range(8)])
    split = Split(
        8, lambda indices: (tf.gather(tf.constant(pixels), indices), tf.cast(indices, tf.int32))
    )
    experiment = Experiment(
        data=Data(image_size=SIZE),
        scaling=Scaling("mean", (0, 0, 0)),
        global_batch_size=8,
        replicas=1,
    )
    images = build_eval_batches(experiment, split, 8, 8)(number(0)).images.numpy()
    wanted = np.asarray(Image.fromarray(pixels[3]).resize((60, 40), Image.BILINEAR))[:, 10:50]
    assert np.abs(images[3] - wanted).mean() < 1
    assert build_train_batches(experiment, split, build_targets(experiment, 8))(
        number(0), number(0)
    ).images.shape == (8, SIZE, SIZE, 3)
    assert image_shape(experiment, Source(split, split, ("a",), (20, 30, 3))) == (SIZE, SIZE, 3)
