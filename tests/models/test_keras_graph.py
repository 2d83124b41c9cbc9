"""The private attributes of Keras that Paceline uses still mean what it assumes."""

import keras
import pytest

from paceline.maths.template import build_template
from paceline.models.keras_graph import (
    all_layers,
    calls_of,
    is_graph,
    own_trainable,
    producer_of,
    relative_names,
    seed_generators,
)


class Own(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(2)

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return self.inner(x)


def test_keras_still_has_the_graph_of_a_model() -> None:
    inputs = keras.Input((4,), name="in")
    shared = keras.layers.Dense(4, name="shared")
    added = keras.layers.Add(name="sum")([shared(inputs), shared(shared(inputs))])
    model = keras.Model(inputs, added)
    names = [call.operation.name for call in calls_of(model)]
    assert (names[0], names[-1], names.count("shared")) == ("in", "sum", 3)
    (last,) = [call for call in calls_of(model) if call.operation.name == "sum"]
    assert len(last.input_tensors) == len(last.parent_nodes) == 2
    assert tuple(last.outputs[0].shape) == (None, 4)
    assert producer_of(added).name == "sum"
    assert [layer.name for layer in all_layers(model)[1:]] == ["in", "shared", "sum"]


def test_a_subclass_with_its_own_call_is_not_a_graph() -> None:
    own = Own()
    assert not is_graph(own)
    assert calls_of(own) == []
    assert own.inner in all_layers(own)
    sequential = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")])
    assert calls_of(sequential)[-1].operation.name == "dense"


def test_a_random_layer_has_a_seed_generator_and_a_frozen_layer_its_weights() -> None:
    dense, dropout = keras.layers.Dense(2), keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Input((4,)), dense, dropout])
    (generator,) = seed_generators(model)
    assert any(variable is generator.state for variable in model.non_trainable_variables)
    dense.trainable = False
    assert [variable.name for variable in own_trainable(dense)] == ["kernel", "bias"]


@pytest.mark.parametrize(
    "layer",
    ["Conv2D", "DepthwiseConv2D", "Conv2DTranspose", "SeparableConv2D", "BatchNormalization"],
)
def test_automatic_names_of_kerass_layers_are_counted_within_the_model(layer):
    def names():
        options = {"DepthwiseConv2D": (3,), "BatchNormalization": ()}.get(layer, (4, 3))
        kind = getattr(keras.layers, layer)
        model = keras.Sequential([keras.Input((8, 8, 4)), kind(*options), kind(*options)])
        return relative_names(model, model.variables)

    first = names()
    assert names() == first
    assert len({name.split("/")[1] for name in first}) == 2


def test_names_do_not_depend_on_which_layers_are_frozen():
    def names(frozen):
        layers = [keras.layers.Dense(3, trainable=k not in frozen) for k in range(3)]
        template = build_template(keras.Sequential([keras.Input((4,)), *layers]))
        return sorted(template.params + template.stats)

    assert names({0}) == names({1}) == names(set())
