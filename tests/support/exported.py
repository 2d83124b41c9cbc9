"""Use an export as somebody who never heard of Paceline: python exported.py FORMAT INPUTS.npz PATH
writes PATH.npz. Not a test itself.

INPUTS has `pixels` and `encoded` (bytes of files).
"""

import json
import sys
import zipfile

import numpy as np


class _NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "paceline":
            raise ModuleNotFoundError(name)


def use_keras(path, inputs):
    import keras

    model = keras.models.load_model(path)
    kinds = {type(layer).__module__.split(".")[0] for layer in model._flatten_layers()}
    assert kinds == {"keras"}, kinds
    facts = json.loads(zipfile.ZipFile(path).read("paceline.json"))
    return facts["classes"], model.predict(inputs["pixels"], batch_size=64, verbose=0)


def use_savedmodel(path, inputs):
    import tensorflow as tf

    serve = tf.saved_model.load(path).signatures["serving_default"]
    with open(f"{path}/assets.extra/paceline.json") as file:
        classes = json.load(file)["classes"]
    batches = np.array_split(inputs["encoded"], -(-len(inputs["encoded"]) // 64))
    found = [serve(encoded=tf.constant(batch)) for batch in batches]
    names = np.concatenate([each["class"].numpy() for each in found])
    labels = np.concatenate([each["label"].numpy() for each in found])
    assert [name.decode() for name in names] == [classes[label] for label in labels]
    return classes, np.concatenate([each["probabilities"].numpy() for each in found])


def use_onnx(path, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    return classes, session.run(["probabilities"], {"pixels": inputs["pixels"].astype("uint8")})[0]


def use_tflite(path, inputs):
    import tensorflow as tf

    facts = json.loads(zipfile.ZipFile(path).read("paceline.json"))
    serve = tf.lite.Interpreter(path).get_signature_runner()
    found = [serve(pixels=image[None])["probabilities"][0] for image in inputs["pixels"]]
    return facts["classes"], np.stack(found)


if __name__ == "__main__":
    sys.meta_path.insert(0, _NotInstalled())
    kind, source, path = sys.argv[1:]
    use = globals()[f"use_{kind}"]
    with np.load(source, allow_pickle=True) as inputs:
        classes, outputs = use(path, dict(inputs))
    np.savez(f"{path}.npz", outputs=outputs, classes=classes)
    assert "paceline" not in sys.modules
