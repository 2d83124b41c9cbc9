"""Use exports as somebody who never heard of Paceline: python exported.py FORMAT INPUTS.npz PATH...
writes PATH.npz for each. Not a test itself.

INPUTS has `images` (scaled), `pixels` and `encoded` (bytes of files); the export says which of them
it takes.
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
    return facts["classes"], model.predict(
        inputs["pixels" if "pixels" in facts["input"] else "images"], batch_size=64, verbose=0
    )


def use_savedmodel(path, inputs):
    import tensorflow as tf

    serve = tf.saved_model.load(path).signatures["serving_default"]
    with open(f"{path}/assets.extra/paceline.json") as file:
        classes = json.load(file)["classes"]
    (name,) = serve.structured_input_signature[1]
    found = [
        serve(**{name: tf.constant(part)})
        for part in np.array_split(inputs[name], -(-len(inputs[name]) // 64))
    ]
    if name == "encoded":
        names = np.concatenate([each["class"].numpy() for each in found])
        labels = np.concatenate([each["label"].numpy() for each in found])
        assert [name.decode() for name in names] == [classes[label] for label in labels]
    return classes, np.concatenate(
        [each["probabilities" if name == "encoded" else "outputs"].numpy() for each in found]
    )


def use_onnx(path, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert given.name == ("probabilities" if taken.name == "pixels" else "outputs")
    return classes, session.run(None, {taken.name: inputs[taken.name]})[0]


if __name__ == "__main__":
    sys.meta_path.insert(0, _NotInstalled())
    kind, source, *paths = sys.argv[1:]
    use = {"keras": use_keras, "savedmodel": use_savedmodel, "onnx": use_onnx}[kind]
    for path in paths:
        with np.load(source, allow_pickle=True) as inputs:
            classes, outputs = use(path, dict(inputs))
        np.savez(f"{path}.npz", outputs=outputs, classes=classes)
    assert "paceline" not in sys.modules
