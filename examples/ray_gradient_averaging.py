"""Fit y = 0.1 x + 0.3: two actors compute gradients, and the driver applies their mean.

pip install 'paceline[cpu,ray]'
python examples/ray_gradient_averaging.py
"""

import numpy as np
import ray

WORKERS, STEPS = 2, 200


def build_model():
    import keras

    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="line")])


@ray.remote
class Worker:
    def __init__(self, index):
        import paceline

        self.model, self.random = build_model(), np.random.default_rng(index)
        self.weights = paceline.Weights(self.model)

    def gradients(self, weights):
        """Return the gradients of a new batch at these weights."""
        import tensorflow as tf

        self.weights.set_weights(weights)
        x = self.random.uniform(0, 1, (64, 1)).astype("float32")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x) - (0.1 * x + 0.3)) ** 2)
        return [
            gradient.numpy() for gradient in tape.gradient(loss, self.model.trainable_variables)
        ]


if __name__ == "__main__":
    import keras

    import paceline

    ray.init()
    workers = [Worker.remote(index) for index in range(WORKERS)]
    model, optimizer = build_model(), keras.optimizers.SGD(0.5)
    weights = paceline.Weights(model)
    for _ in range(STEPS):
        reference = ray.put(weights.get_weights())  # stored once for all workers
        answers = ray.get([worker.gradients.remote(reference) for worker in workers])
        optimizer.apply(
            [np.mean(each, axis=0) for each in zip(*answers, strict=True)],
            model.trainable_variables,
        )
    found = weights.get_weights()
    slope, offset = (
        float(found[f"sequential/line/{name}"].squeeze()) for name in ("kernel", "bias")
    )
    print(f"y = {slope:.3f} x + {offset:.3f}")
