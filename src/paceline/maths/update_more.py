"""Optional parts of an update: groups of weights, Muon, moving averages and a loss scale.

Groups (`optimizer.groups`) have a rule, a rate and a decay each. The vectors are cut into segments
of one group. The update of each segment is opaque to the graph optimizer, so its bits do not depend
on which other segments an engine updates with it. Elementwise rules may be cut anywhere. Muon
(Jordan 2024) needs whole variables, because products of matrices give different bits on slices.

Gradients of float16 would be rounded to zero, so the loss is multiplied by a scale and the gradient
divided by it. A step whose mean gradient is not finite changes nothing but the scale, which is
halved; after `GROW_EVERY` finite steps in a row it is doubled. The scale is part of the state. All
workers decide by the same mean, so they decide alike.
"""

import math
from dataclasses import dataclass, replace

import tensorflow as tf

from paceline.experiment.experiment import Experiment
from paceline.experiment.optimizer import Group, Optimizer, find_group, groups_of
from paceline.experiment.schedule import Rates
from paceline.kernels.arithmetic import Operand, number, plain, product, square_root, total
from paceline.maths.replica import opaque
from paceline.maths.state import AVERAGED_STATS, LOSS_SCALE, Part
from paceline.maths.template import Template
from paceline.maths.update import Update, Vectors, decays, slot_names, update_slice

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Muon's coefficients of m, m^3 and m^5: they enlarge small singular values fastest."""
ITERATIONS = 3
GROW_EVERY = 2_000
SMALLEST, LARGEST = 1.0, 2.0**30


@dataclass(frozen=True)
class Segment:
    """A run of numbers with the same settings, [start, stop) of the vector of parameters."""

    start: int
    stop: int
    group: int
    decay: float
    shape: tuple[int, ...] = ()
    """The shape of the variable if Muon updates it; then the variable is the whole segment."""


def has_muon(optimizer: Optimizer) -> bool:
    """Return whether some variables must not be cut."""
    return any(group.rule == "muon" for group in groups_of(optimizer))


def build_segments(optimizer: Optimizer, params: Part) -> list[Segment]:
    """Return the segments of all parameters; neighbors with the same settings are one."""
    groups = groups_of(optimizer)
    segments: list[Segment] = []
    start = 0
    for name, shape in params:
        stop, index = start + math.prod(shape), find_group(groups, name)
        group = groups[index]
        usual = optimizer.weight_decay * decays(optimizer, name, shape)
        whole = tuple(shape) if group.rule == "muon" and len(shape) > 1 else ()
        new = Segment(start, stop, index, usual if group.decay is None else group.decay, whole)
        last = segments[-1] if segments else None
        if last and replace(last, start=start, stop=stop) == new and not whole:
            segments[-1] = replace(last, stop=stop)
        else:
            segments.append(new)
        start = stop
    return segments


def build_grouped_update(optimizer: Optimizer, params: Part, own: slice | None = None) -> Update:
    """Return the update of params and slots, or of the slice `own` of them."""
    segments, names = build_segments(optimizer, params), ("params", *slot_names(optimizer))
    start, stop = (own.start, own.stop) if own else (0, segments[-1].stop)
    segments = [each for each in segments if each.start < stop and each.stop > start]
    sizes = [min(each.stop, stop) - max(each.start, start) for each in segments]
    groups = groups_of(optimizer)
    updates = [_build_one(optimizer, groups[each.group], each) for each in segments]

    def update(vectors: Vectors, gradient: tf.Tensor, rates: Rates[tf.Tensor]) -> Vectors:
        pieces = {name: tf.split(vectors[name], sizes) for name in names}
        new = []
        for index, piece in enumerate(tf.split(gradient, sizes)):
            own = {name: pieces[name][index] for name in names}
            new.append({**own, **updates[index](own, piece, rates)})
        return {name: tf.concat([each[name] for each in new], 0) for name in names}

    return update


def _build_one(optimizer: Optimizer, group: Group, segment: Segment) -> Update:
    """Return the update of one segment."""
    momentum = optimizer.momentum if group.momentum is None else group.momentum
    own = replace(optimizer, momentum=momentum, weight_decay=segment.decay, groups=())

    def update(vectors: Vectors, gradient: tf.Tensor, rates: Rates[tf.Tensor]) -> Vectors:
        group_rates = rates._replace(learning_rate=rates.groups[segment.group])
        if group.is_frozen:
            return {"params": vectors["params"]}
        if segment.shape:
            return _muon(own, segment.shape[-1], vectors, gradient, group_rates)
        decay = tf.constant(segment.decay) if segment.decay else None
        return update_slice(own, vectors, gradient, group_rates, decay)

    return opaque(update)


def _muon(
    optimizer: Optimizer,
    outputs: int,
    vectors: Vectors,
    gradient: tf.Tensor,
    rates: Rates[tf.Tensor],
) -> Vectors:
    """Update a whole variable. It is first scaled to the norm of the root of its outputs."""
    params, gradient = number(vectors["params"]), number(gradient)
    momentum = optimizer.momentum * number(vectors["momentum"]) + gradient
    chosen = plain(gradient + optimizer.momentum * momentum if optimizer.nesterov else momentum)
    direction = number(tf.reshape(orthogonal(tf.reshape(chosen, [-1, outputs])), [-1]))
    if optimizer.weight_decay:
        direction += optimizer.weight_decay * params
    scaled = params * (outputs**0.5 / _norm(params))
    new = plain(scaled - rates.learning_rate * direction)
    # a weight that is frozen from some step on has the rate 0, and is not scaled either
    kept = tf.where(rates.learning_rate > 0, new, plain(params))
    return {"params": kept, "momentum": plain(momentum)}


def _norm(x: Operand) -> Operand:
    """Return the root of the sum of squares, and a little more, so that one can divide by it."""
    return square_root(number(total(plain(x * x)))) + 1e-7


def orthogonal(gradient: tf.Tensor) -> tf.Tensor:
    """Return a matrix [inputs, outputs] with the same singular vectors, and values near one. It
    takes some steps of Newton's and Schulz's iteration."""
    a, b, c = NEWTON_SCHULZ
    m = plain(number(gradient) / _norm(number(gradient)))
    for _ in range(ITERATIONS):
        square = product(m, m, transpose_a=True)
        inner = plain(b * number(square) + c * number(product(square, square)))
        m = plain(a * number(m) + product(m, inner))
    return m


def moving_averages(vectors: Vectors, new: Vectors, rates: Rates[tf.Tensor]) -> Vectors:
    """Return the moving averages, of BatchNorm statistics too, after a step that led to `new`."""
    decay = number(rates.ema_decay)
    sources = {"ema": "params", AVERAGED_STATS: "stats"}
    return {
        name: plain(decay * vectors[name] + (1 - decay) * new[source])
        for name, source in sources.items()
    }


def complete(
    experiment: Experiment,
    template: Template,
    vectors: Vectors,
    new: Vectors,
    gradient: tf.Tensor,
    rates: Rates[tf.Tensor],
) -> Vectors:
    """Return `new`, the vectors after an update of `vectors`, with averages and loss scale."""
    if experiment.average.decay:
        new |= moving_averages(vectors, new, rates)
        new[AVERAGED_STATS] = template.keep_fixed(vectors[AVERAGED_STATS], new[AVERAGED_STATS])
    return keep_if_finite(vectors, new, gradient) if LOSS_SCALE in vectors else new


def keep_if_finite(old: Vectors, new: Vectors, gradient: tf.Tensor) -> Vectors:
    """Return `new` if the mean gradient is finite, otherwise `old`; and the next loss scale."""
    finite = tf.reduce_all(tf.math.is_finite(gradient))
    kept = {name: tf.where(finite, new[name], old[name]) for name in new}
    value, count = old[LOSS_SCALE][0], old[LOSS_SCALE][1] + 1
    grows, zero = count >= GROW_EVERY, tf.zeros_like(count)
    grown = tf.where(grows, tf.minimum(value * 2, LARGEST), value)
    if_finite = tf.stack([grown, tf.where(grows, zero, count)])
    halved = tf.stack([tf.maximum(value / 2, SMALLEST), zero])
    return {**kept, LOSS_SCALE: tf.where(finite, if_finite, halved)}
