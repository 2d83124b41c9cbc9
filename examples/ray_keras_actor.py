"""Hold your own Keras model in a Ray actor: train it there, get its weights, set other weights.

    pip install 'paceline[cpu,ray]'
    python examples/ray_keras_actor.py

Each actor builds its own model. Only weights are sent, as a dictionary of arrays. The names are the
same in every process.
"""

import numpy as np
import ray


@ray.remote
class Network:
    def __init__(self, seed):
        import keras  # imported in the process of the actor, not in the driver

        import paceline

        keras.utils.set_random_seed(seed)
        self.model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
        self.model.compile(keras.optimizers.Adam(0.01), "mse")
        self.weights = paceline.Weights(self.model, optimizer=True)  # includes Adam's slots

    def train(self, x, y, epochs):
        return self.model.fit(x, y, epochs=epochs, verbose=0).history["loss"][-1]

    def get_weights(self):
        return self.weights.get_weights()

    def set_weights(self, weights):
        self.weights.set_weights(weights)

    def predict(self, x):
        return self.model.predict(x, verbose=0)


if __name__ == "__main__":
    ray.init()
    x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
    # stored once in the object store, for all calls
    x_ref, y_ref = ray.put(x), ray.put(x.sum(1, keepdims=True))

    first, second = Network.remote(seed=1), Network.remote(seed=2)
    print("loss of the first:", ray.get(first.train.remote(x_ref, y_ref, epochs=5)))
    # the weights go from actor to actor; the driver holds only a reference
    ray.get(second.set_weights.remote(first.get_weights.remote()))
    same = np.array_equal(*ray.get([actor.predict.remote(x_ref) for actor in (first, second)]))
    print("both predict the same:", same)
    print("loss of the second, continued:", ray.get(second.train.remote(x_ref, y_ref, epochs=5)))
