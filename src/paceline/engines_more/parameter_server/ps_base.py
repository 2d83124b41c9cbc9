"""What synchronous and asynchronous training on parameter servers share.

Both use TensorFlow's `ParameterServerStrategy` and `ClusterCoordinator`, which repeats on another
worker what a lost worker was to compute. So a worker's result may come late, or twice. A worker
therefore only puts its vector into a slot, with a stamp of what it was computed for. The chief
alone changes the state: an update takes the slots that have the expected stamps, on all parameter
servers or on none. If a late vector is in a slot, the expected one is computed again.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import tensorflow as tf

from paceline.engines.base import WantsStop
from paceline.engines.probe import find_silent
from paceline.engines_more.parameter_server.serve import check_tasks
from paceline.experiment.fields import Json
from paceline.experiment.schedule import Rates
from paceline.job import Cluster
from paceline.maths.metrics import SIGNALS, EvalResult, evaluate_splits
from paceline.maths.replica import Core, Step, opaque, run_side_by_side
from paceline.maths.state import STATISTICS, Part, State, evaluated_vectors
from paceline.maths.update import Update, clip_scale, decay_mask, update_slice
from paceline.maths.update_more import build_grouped_update, has_muon, moving_averages

STAMP = 2  # float32 places of an int64


def layer_bounds(part: Part, count: int) -> list[tuple[int, int]]:
    """Return start and stop of `count` slices that are cut between variables only, each cut at the
    free place that is nearest to an equal share."""
    places = np.cumsum([math.prod(shape) for _, shape in part]).tolist()
    cuts, first = [0], 0
    for index in range(1, count):
        wanted = places[-1] * index // count
        free = range(first, len(places) - (count - index))
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
        self._experiment = core.experiment
        optimizer, params = core.experiment.optimizer, core.layout.parts["params"]
        self.slices = {
            name: slice(size * index // count, size * (index + 1) // count)
            for name, size in core.layout.sizes().items()
        }
        if has_muon(optimizer):  # it needs whole variables
            whole = slice(*layer_bounds(params, count)[index])
            self.slices |= dict.fromkeys(self.slices.keys() - set(STATISTICS), whole)
        self.sizes = {name: own.stop - own.start for name, own in self.slices.items()}
        own = self.slices["params"]
        self._fixed = core.template.fixed_mask()[self.slices["stats"]]
        self._averages = opaque(moving_averages)
        self._decay = None
        with tf.device(self.device):
            self.vectors = {
                name: tf.Variable(tf.zeros([size]), trainable=False)
                for name, size in self.sizes.items()
            }
            self.version = tf.Variable(0, trainable=False, dtype=tf.int64)
            if optimizer.weight_decay and not optimizer.groups:
                self._decay = tf.Variable(decay_mask(optimizer, params)[own], trainable=False)
        update: Update = partial(update_slice, optimizer)
        if optimizer.groups:
            update = build_grouped_update(optimizer, params, own)
        self._update = opaque(update)

    def open_slots(self, count: int, more: int) -> None:
        """Create `count` empty slots, with `more` further numbers in each."""
        width = self.sizes["params"] + self.sizes["stats"] + more + STAMP
        with tf.device(self.device):
            self.slots = tf.Variable(tf.fill([count, width], -1.0), trainable=False)

    def put(self, slot: tf.Tensor, stamp: tf.Tensor, *vectors: tf.Tensor) -> None:
        """In the graph of a worker: write this server's part of a vector into a slot. `vectors` are
        the whole gradient, the whole statistics, and what the slot has more."""
        gradient, stats, more = vectors
        own = [gradient[self.slices["params"]], stats[self.slices["stats"]], more]
        row = tf.concat([*own, tf.bitcast(stamp, tf.float32)], 0)
        with tf.device(self.device):
            self.slots.scatter_update(tf.IndexedSlices(row, slot))

    def split(self, row: tf.Tensor) -> list[tf.Tensor]:
        """Return gradient, statistics and the rest of a row that has no stamp."""
        return list(tf.split(row, [self.sizes["params"], self.sizes["stats"], -1]))

    def update(
        self, gradient: tf.Tensor, stats: tf.Tensor, rates: Rates[tf.Tensor], ready: tf.Tensor
    ) -> None:
        """Update the vectors by a gradient and new statistics, if everything was `ready`."""
        with tf.device(self.device):
            vectors = {name: tf.identity(variable) for name, variable in self.vectors.items()}
            decay = () if self._decay is None else (tf.identity(self._decay),)
            new = {**self._update(vectors, gradient, rates, *decay), "stats": stats}
            if self._experiment.average.decay:
                new |= self._averages(vectors, new, rates)
            for name, variable in self.vectors.items():
                changes = ready & ~self._fixed if name in STATISTICS else ready
                variable.assign(tf.where(changes, new[name], variable))
            self.version.assign_add(tf.cast(ready, tf.int64))


class ParameterServerEngine:
    """A state in slices on parameter servers; a subclass adds `advance`.

    Each worker runs `side_by_side` replicas at a time: one on each of its `gpus`, which have names
    such as /gpu:0, or all on its CPU.
    """

    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        strategy: tf.distribute.ParameterServerStrategy,
        side_by_side: int,
        wants_stop: WantsStop,
        gpus: Sequence[str] = (),
    ) -> None:
        self._gpus = gpus or [""]
        self._core = core
        self._cluster = cluster
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._wants_stop = wants_stop
        self._workers = cluster.num_workers
        self._chief_trains = cluster.chief_trains
        self._side_by_side = side_by_side
        self._replicas = core.experiment.replicas
        self._step = 0
        self._servers = [Server(core, index, len(cluster.ps)) for index in range(len(cluster.ps))]
        self._clip = opaque(clip_scale)
        self._evaluate = {
            split: tf.function(partial(self._evaluate_turn, split), autograph=False)
            for split in core.splits
        }

    def check(self, facts: Json) -> None:
        check_tasks(self._cluster, facts)

    def load(self, state: State) -> State:
        self._step = state.step
        for server in self._servers:
            for name, variable in server.vectors.items():
                variable.assign(state.vectors[name][server.slices[name]])
        return state

    def state(self) -> State:
        with self._named_losses():
            pieces = {
                name: [server.vectors[name].numpy() for server in self._servers]
                for name in self._core.layout.parts
            }
        return State(self._step, {name: np.concatenate(parts) for name, parts in pieces.items()})

    def evaluate(self, final: bool) -> EvalResult:
        def rows_of(split: str, count: int) -> np.ndarray:
            numbers = [tf.constant(n, tf.int64) for n in range(0, count, self._side_by_side)]
            turn = self._evaluate[split]
            turns = [self._coordinator.schedule(turn, (each,)) for each in numbers]
            self._coordinator.join()
            return np.concatenate([self._coordinator.fetch(turn) for turn in turns])

        with self._named_losses():
            return evaluate_splits(self._core, final, rows_of)

    def agree(self, own: bool) -> bool:
        return own  # the chief alone runs the loop

    def _evaluate_turn(self, split: str, first: tf.Tensor) -> tf.Tensor:
        """On a worker: return the rows of `side_by_side` evaluation batches."""
        _, (params, stats) = self._read(*evaluated_vectors(self._core.layout.parts))
        return self._core.evaluate_batches(split, params, stats, first, self._side_by_side)

    def close(self) -> None:
        """Wait for what still runs, then end the processes of workers and parameter servers."""
        self._coordinator.join()
        for role in ("worker", "ps"):
            for index in range(len(self._cluster.tasks[role])):
                with suppress(tf.errors.OpError), tf.device(f"/job:{role}/task:{index}/cpu:0"):
                    tf.raw_ops.Abort(error_msg="the chief has ended", exit_without_error=True)

    @contextmanager
    def _named_losses(self) -> Iterator[None]:
        """Name the lost parameter server if it caused TensorFlow's error."""
        try:
            yield
        except tf.errors.OpError as error:
            if gone := find_silent(self._cluster.ps):
                raise ConnectionError(
                    f"the state is lost with the parameter server {', '.join(gone)}, which is gone"
                ) from error
            raise

    def _read(self, *names: str) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """In the graph of a worker: read vectors, and the fewest updates of any of their slices."""
        versions = [tf.identity(server.version) for server in self._servers]
        with tf.control_dependencies(versions):
            vectors = [
                tf.concat([tf.identity(server.vectors[name]) for server in self._servers], 0)
                for name in names
            ]
        return tf.reduce_min(tf.stack(versions)), vectors

    def _replica_vectors(
        self, params: tf.Tensor, stats: tf.Tensor, which: list[tuple[tf.Tensor, tf.Tensor]]
    ) -> list[tf.Tensor]:
        """In the graph of a worker: compute the vectors of replicas, pairs (step, replica)."""
        signals = tf.zeros([len(SIGNALS)])
        steps = [Step(step, replica, signals) for step, replica in which]
        replicas = [partial(self._on_device, k, params, stats, s) for k, s in enumerate(steps)]
        ahead = self._side_by_side if self._gpus[0] else 0
        return run_side_by_side(replicas, self._side_by_side, ahead)

    def _on_device(
        self, k: int, params: tf.Tensor, stats: tf.Tensor, step: Step, after: list[tf.Tensor]
    ) -> tf.Tensor:
        with tf.device(self._gpus[k % len(self._gpus)]):
            return self._core.replica_vector(params, stats, step, after)

    def _split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Return gradient, statistics and tail of a replica's vector. Fixed statistics are 0."""
        sizes, template = self._core.layout.sizes(), self._core.template
        parts = [sizes["params"], template.moving_size(), self._core.tail_size]
        gradient, moving, tail = tf.split(vector, parts)
        return [gradient, template.merge(tf.zeros([sizes["stats"]]), moving), tail]
