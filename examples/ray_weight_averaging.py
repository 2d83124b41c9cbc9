"""Average weights: actors train alone on their own data, then continue from the mean.

    pip install 'paceline[cpu,ray]'
    python examples/ray_weight_averaging.py

`paceline train ... --on ray --sync.method weights` does this for image classifiers, with the same
bits on any number of workers and after failures. This program shows the idea for your own model.
"""

import numpy as np
import ray

WORKERS, ROUNDS = 2, 5


@ray.remote
class Network:
    def __init__(self, x, y):
        import keras

        import paceline

        keras.utils.set_random_seed(0)
        self.x, self.y = x, y
        self.model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
        self.model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        self.weights = paceline.Weights(self.model, optimizer=True)  # includes momentum

    def train(self, weights=None):
        """Train one round alone, starting from `weights`; return the new weights."""
        if weights is not None:
            self.weights.set_flat(weights)
        self.model.fit(self.x, self.y, epochs=2, verbose=0)
        return self.weights.get_flat()

    def loss(self, weights, x, y):
        self.weights.set_flat(weights)
        return self.model.evaluate(x, y, verbose=0)


@ray.remote(num_cpus=0)  # reserves no core for so little work
def mean(*vectors):
    return np.mean(vectors, axis=0)


if __name__ == "__main__":
    ray.init()
    x = np.random.default_rng(0).normal(size=(512, 4)).astype("float32")
    y = np.abs(x).sum(1, keepdims=True)
    shards = zip(np.array_split(x, WORKERS), np.array_split(y, WORKERS), strict=True)
    actors = [Network.remote(*shard) for shard in shards]

    average = mean.remote(*[actor.train.remote() for actor in actors])
    print("loss after round 1:", ray.get(actors[0].loss.remote(average, x, y)))
    for _ in range(ROUNDS - 1):
        # only references: the driver never holds the weights
        average = mean.remote(*[actor.train.remote(average) for actor in actors])
    print(f"loss after round {ROUNDS}:", ray.get(actors[0].loss.remote(average, x, y)))
