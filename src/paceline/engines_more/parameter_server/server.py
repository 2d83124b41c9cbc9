"""What one parameter server stores: its slices of the vectors, and the slots that workers fill."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import tensorflow as tf

from paceline.experiment.schedule import Rates
from paceline.maths.grouped_update import build_segments, build_segments_update, cut, has_muon
from paceline.maths.opaque import opaque
from paceline.maths.replica import Core
from paceline.maths.state import STATISTICS, Part
from paceline.maths.update import decay_mask, moving_averages, update_slice

STAMP = 2  # float32 places of an int64


def bounds(size: int, count: int) -> list[tuple[int, int]]:
    """Return start and stop of each of `count` slices of a vector; sizes differ by at most one."""
    return [(size * i // count, size * (i + 1) // count) for i in range(count)]


def layer_bounds(part: Part, count: int) -> list[tuple[int, int]]:
    """Return start and stop of `count` slices that are cut between variables only, each cut at the
    free place that is nearest to an equal share."""
    places = np.cumsum([math.prod(shape) for _, shape in part]).tolist()
    cuts, first = [0], 0
    for index in range(1, count):
        free = range(first, len(places) - (count - index))
        wanted = places[-1] * index // count
        chosen = min(free, key=lambda k: abs(places[k] - wanted))
        cuts.append(places[chosen])
        first = chosen + 1
    return list(zip(cuts, [*cuts[1:], places[-1]], strict=True))


def stamps(rows: tf.Tensor) -> tf.Tensor:
    """Return the stamps of rows of slots."""
    return tf.bitcast(rows[..., -STAMP:], tf.int64)


class Server:
    """One parameter server: its slice of every vector, their number of updates, and its slots.

    A row of the slots is [gradient | statistics | more | stamp].
    """

    def __init__(self, core: Core, index: int, count: int) -> None:
        self.device = f"/job:ps/task:{index}/cpu:0"
        experiment = core.experiment
        optimizer, params = experiment.optimizer, core.layout.parts["params"]
        self.slices = {
            name: slice(*bounds(size, count)[index]) for name, size in core.layout.sizes().items()
        }
        if has_muon(optimizer):  # it needs whole variables
            own_params = slice(*layer_bounds(params, count)[index])
            self.slices = {
                n: own if n in STATISTICS else own_params for n, own in self.slices.items()
            }
        self.sizes = {name: own.stop - own.start for name, own in self.slices.items()}
        self._update = opaque(partial(update_slice, optimizer))
        self._averages = opaque(partial(moving_averages, experiment))
        self._update_groups = None
        if optimizer.groups:
            own = self.slices["params"]
            segments = cut(build_segments(optimizer, params), own.start, own.stop)
            self._update_groups = opaque(build_segments_update(optimizer, segments))
        self._decay = None
        self._fixed = None
        if core.template.fixed:
            self._fixed = core.template.fixed_mask()[self.slices["stats"]]
        with tf.device(self.device):
            self.vectors = {
                name: tf.Variable(tf.zeros([size]), trainable=False)
                for name, size in self.sizes.items()
            }
            self.version = tf.Variable(0, trainable=False, dtype=tf.int64)
            if optimizer.weight_decay and not self._update_groups:
                mask = decay_mask(optimizer, params)[self.slices["params"]]
                self._decay = tf.Variable(mask, trainable=False)

    def open_slots(self, count: int, more: int) -> None:
        """Create `count` empty slots, with `more` further numbers in each."""
        width = self.sizes["params"] + self.sizes["stats"] + more + STAMP
        with tf.device(self.device):
            self.slots = tf.Variable(tf.fill([count, width], -1.0), trainable=False)

    def put(
        self,
        slot: tf.Tensor,
        stamp: tf.Tensor,
        gradient: tf.Tensor,
        stats: tf.Tensor,
        more: tf.Tensor,
    ) -> None:
        """In the graph of a worker: write this server's part of the vectors into a slot."""
        own = [gradient[self.slices["params"]], stats[self.slices["stats"]], more]
        row = tf.concat([*own, tf.bitcast(stamp, tf.float32)], 0)
        with tf.device(self.device):
            self.slots.scatter_update(tf.IndexedSlices(row, slot))

    def split(self, row: tf.Tensor) -> list[tf.Tensor]:
        """Return gradient, statistics and the rest of a row that has no stamp."""
        return list(tf.split(row, [self.sizes["params"], self.sizes["stats"], -1]))

    def update(
        self,
        gradient: tf.Tensor,
        stats: tf.Tensor,
        rates: Rates[tf.Tensor],
        ready: tf.Tensor,
        scale: tf.Tensor | None = None,
    ) -> None:
        """Update the vectors by a gradient and new statistics, if everything was `ready`."""
        vectors = {name: tf.identity(variable) for name, variable in self.vectors.items()}
        if self._update_groups:
            new = self._update_groups(vectors, gradient, rates, scale)
        else:
            decay = None if self._decay is None else tf.identity(self._decay)
            new = self._update(vectors, gradient, rates, decay, scale)
        new = {**new, "stats": stats}
        new |= self._averages(vectors, new, rates)
        for name, variable in self.vectors.items():
            changes = ready
            if name in STATISTICS and self._fixed is not None:
                changes = ready & ~self._fixed
            variable.assign(tf.where(changes, new[name], variable))
        self.version.assign_add(tf.cast(ready, tf.int64))
