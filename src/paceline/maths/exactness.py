"""Which operations of an experiment TensorFlow computes, so that their bits depend on the CPU.

Paceline's own operations, whole numbers, and what only moves or compares numbers have the same bits
everywhere. Of doubles, + - x / and square roots have, too.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import tensorflow as tf

from paceline.maths.replica import Core, Step

MOVES = frozenset(
    """
    _Arg _Retval Placeholder Const Identity IdentityN NoOp StopGradient PreventGradient Reshape
    ExpandDims Squeeze Shape ShapeN Size Rank Slice StridedSlice StridedSliceGrad Split SplitV
    Pack Unpack ConcatV2 Concat ConcatOffset Tile BroadcastTo Pad PadV2 MirrorPad ReverseV2
    Transpose GatherV2 GatherNd ScatterNd TensorScatterUpdate Fill ZerosLike OnesLike OneHot
    Select SelectV2 Where Cast Bitcast EnsureShape ArgMax ArgMin Max Min Maximum Minimum
    ClipByValue Round Rint Floor Ceil Abs Neg Equal NotEqual Less LessEqual Greater GreaterEqual
    Sign IsFinite Range TensorListStack TensorListReserve TensorListSetItem TensorListGetItem
    TensorListFromTensor TensorListLength ReadVariableOp AssignVariableOp InTopKV2 FloorMod Relu
    """.split()  # noqa: SIM905
)
"""Operations without a rounding."""
EXACT_DOUBLES = frozenset(["AddV2", "Add", "Sub", "Mul", "RealDiv", "Sqrt", "Square", "Reciprocal"])
FLOATS = {each.as_datatype_enum for each in (tf.float16, tf.bfloat16, tf.float32)}


@cache
def outside(core: Core) -> tuple[str, ...]:
    """Return the types of operations of a step that are TensorFlow's; none: any CPU is the same."""
    found, number = set[str](), tf.TensorSpec([], tf.int64)
    sizes = core.layout.sizes()
    params, stats = (tf.TensorSpec([sizes[name]], tf.float32) for name in ("params", "stats"))
    now = Step(number, number, tf.TensorSpec([2], tf.float32))
    for phase in core.phases:
        batch_of, step_of = cast(Any, phase.batch), cast(Any, phase.replica_step)
        batch = batch_of.get_concrete_function(number, number)
        prepared = tf.nest.map_structure(tf.TensorSpec.from_tensor, batch.structured_outputs)
        step = step_of.get_concrete_function(params, stats, prepared, now)
        for graph in (batch.graph, step.graph):
            found |= _unknown(graph.as_graph_def(), [tensor.op.name for tensor in graph.outputs])
    return tuple(sorted(found))


def bits_of(core: Core) -> str:
    """Return on which machines an experiment gives the same bits, for people."""
    if not (names := outside(core)):
        return "any CPU"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"this kind of CPU, because of {', '.join(names[:3])}{more}"


def _unknown(graph: Any, outputs: list[str]) -> set[str]:
    """Return the types of operations with roundings on which some outputs of a graph depend."""
    functions = {each.signature.name: each for each in graph.library.function}
    found, waiting, seen = set[str](), [(graph.node, outputs)], set[str]()
    while waiting:
        nodes, names = waiting.pop()
        by_name = {node.name: node for node in nodes}
        needed = [name for name in names if name in by_name]
        reached = set[str]()
        while needed:
            node = by_name[needed.pop()]
            if node.name in reached:
                continue
            reached.add(node.name)
            inputs = (each.lstrip("^").split(":")[0] for each in node.input)
            needed += [name for name in inputs if name in by_name]
            called = {each.name for value in node.attr.values() for each in _functions_of(value)}
            for name in called - seen:
                seen.add(name)
                body = functions[name]
                results = [each.split(":")[0] for each in body.ret.values()]
                waiting.append((body.node_def, [*results, *body.control_ret.values()]))
            if not called and not _is_exact(node):
                found.add(node.op)
    return found


def _functions_of(value: Any) -> list[Any]:
    return [value.func] if value.HasField("func") else list(value.list.func)


def _is_exact(node: Any) -> bool:
    if node.op in MOVES or node.op.startswith("Paceline"):
        return True
    kinds = {value.type for value in node.attr.values() if value.HasField("type")}
    if tf.float64.as_datatype_enum in kinds and not kinds & FLOATS:
        return node.op in EXACT_DOUBLES
    return not kinds & FLOATS
