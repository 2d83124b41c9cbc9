"""`paceline doctor --bits`: which operations decide the bits of a recipe, as TensorFlow's graph
optimizer left them.

A training only looks at the layers of its model (`models.accelerate.computed_by_tensorflow`).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.engines import devices
from paceline.engines.base import connect
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.doctor import Finding
from paceline.job import Job

if TYPE_CHECKING:
    from paceline.engines.base import Engine
    from paceline.maths.replica import Core

MOVES = frozenset(
    """
    _Arg _Retval _EagerConst Placeholder Const Identity IdentityN NoOp StopGradient PreventGradient
    Reshape ExpandDims Squeeze Shape ShapeN Size Rank Slice StridedSlice StridedSliceGrad Split
    SplitV Pack Unpack ConcatV2 Concat ConcatOffset Tile BroadcastTo Pad PadV2 MirrorPad ReverseV2
    Transpose GatherV2 GatherNd ScatterNd TensorScatterUpdate Fill ZerosLike OnesLike OneHot
    Select SelectV2 Where Cast Bitcast EnsureShape ArgMax ArgMin Max Min Maximum Minimum
    ClipByValue Round Rint Floor Ceil Abs Neg Equal NotEqual Less LessEqual Greater GreaterEqual
    Sign IsFinite Range TensorListStack TensorListReserve TensorListSetItem TensorListGetItem
    TensorListFromTensor TensorListLength ReadVariableOp AssignVariableOp InTopKV2 FloorMod Relu
    Enter Exit Merge Switch _SwitchN NextIteration _Send _Recv VarHandleOp ResourceScatterNdUpdate
    """.split()  # noqa: SIM905
)
"""Operations without a rounding."""
EXACT_DOUBLES = frozenset(["AddV2", "Add", "Sub", "Mul", "RealDiv", "Sqrt", "Square", "Reciprocal"])


def examine_bits(recipe: str, data_dir: str) -> Iterator[Finding]:
    """Yield how often the graphs of a recipe have each operation, and what follows for the bits."""
    experiment = get_recipe(recipe, data_dir)
    if data_dir:
        experiment = replace(experiment, data=replace(experiment.data, dir=data_dir))
    own, other = own_and_other_operations(Job(experiment))
    yield Finding("good", "Paceline's operations", _counts(own) or "none")
    if other:
        yield Finding("slow", "TensorFlow's operations that round", _counts(other))
        yield Finding("slow", "bits", "all workers need the same kind of CPU")
    else:
        yield Finding("good", "bits", "any CPU: TensorFlow only moves and compares numbers")


def _counts(operations: Counter[str]) -> str:
    return ", ".join(f"{name} x {count}" for name, count in sorted(operations.items()))


def own_and_other_operations(job: Job) -> tuple[Counter[str], Counter[str]]:
    """Compute a step of each phase and evaluate, in this process; return how often the graphs have
    each operation of Paceline, and each of TensorFlow that rounds."""
    devices.import_tensorflow(job)
    from paceline.build import build_core

    open_engine = connect(job, lambda: False)
    core = build_core(job)
    own, other = Counter[str](), Counter[str]()
    for node in _optimized_nodes(partial(_compute, core, open_engine(core))):
        if node.op.startswith("Paceline"):
            own[node.op] += 1
        elif not is_exact(node):
            other[node.op] += 1
    return own, other


def is_exact(node: Any) -> bool:
    """Return whether an operation has the same bits on any CPU: one of Paceline, of whole numbers,
    without a rounding, or an exactly rounded one of doubles."""
    names = {each.decode() for each in node.attr["op_names"].list.s} or {node.op}  # several in one
    if names <= MOVES or node.op.startswith("Paceline"):
        return True
    import tensorflow as tf

    kinds = {value.type for value in node.attr.values() if value.HasField("type")}
    floats = {each.as_datatype_enum for each in (tf.float16, tf.bfloat16, tf.float32)}
    if tf.float64.as_datatype_enum in kinds and not kinds & floats:
        return names <= EXACT_DOUBLES | MOVES
    return not kinds & floats


def _compute(core: Core, engine: Engine) -> None:
    """Call each function of a core by itself, because the optimizer looks at each by itself, and
    those of the engine around them."""
    import tensorflow as tf

    from paceline.experiment.schedule import Rates, rates_table
    from paceline.maths.replica import Step

    state = engine.load(core.initial_state())
    vectors = {name: tf.constant(vector) for name, vector in state.vectors.items()}
    weights, zero = (vectors["params"], vectors["stats"]), tf.constant(0, tf.int64)
    for phase in core.phases:
        batch = phase.batch(tf.constant(phase.first, tf.int64), zero)
        gradient = phase.replica_step(*weights, batch, Step(zero, zero, tf.zeros([2])))
        engine.advance(phase.first, phase.first + 1)
    core.apply(vectors, gradient, Rates.of_row(rates_table(core.experiment, core.plan, 0, 1)[0]))
    for examine in core.examine.values():
        examine(*weights, zero)
    engine.evaluate(final=False)


def _optimized_nodes(compute: Callable[[], None]) -> Iterator[Any]:
    """Yield the operations of all graphs that a computation runs, as the graph optimizer left
    them."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory(prefix="paceline-bits-") as folder:
        with tf.summary.create_file_writer(folder).as_default():
            for step, function in enumerate((lambda: None, compute)):  # the first ends what was on
                tf.summary.trace_on(graph=True)
                function()
                tf.summary.trace_export("graphs", step=step)
        for record in tf.data.TFRecordDataset([str(each) for each in Path(folder).iterdir()]):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value if event.step else ():
                traced = tf.compat.v1.RunMetadata.FromString(value.tensor.string_val[0])
                for graphs in traced.function_graphs:
                    optimized = graphs.post_optimization_graph
                    yield from optimized.node
                    for function in optimized.library.function:
                        yield from function.node_def
