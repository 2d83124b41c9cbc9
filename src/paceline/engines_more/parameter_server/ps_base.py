"""What synchronous and asynchronous training on parameter servers share.

Both use TensorFlow's `ParameterServerStrategy` and `ClusterCoordinator`, which repeats on another
worker what a lost worker was to compute. So a worker's result may come late, or twice. A worker
therefore only puts its vector into a slot, with a stamp of what it was computed for. The chief
alone changes the state: an update takes the slots that have the expected stamps, on all parameter
servers or on none. If a late vector is in a slot, the expected one is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.engines.base import WantsStop
from paceline.engines.probe import answers
from paceline.engines_more.parameter_server.server import Server
from paceline.job import Cluster
from paceline.maths.evaluation import EvalResult, evaluate_splits
from paceline.maths.metrics import SIGNALS, Tail
from paceline.maths.opaque import opaque
from paceline.maths.replica import Core, Step
from paceline.maths.rounds import run_side_by_side
from paceline.maths.state import State, evaluated_vectors
from paceline.maths.update import clip_scale


class ParameterServerEngine:
    """A state in slices on parameter servers; a subclass adds `advance`.

    Each worker runs `side_by_side` replicas at a time.
    """

    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        strategy: tf.distribute.ParameterServerStrategy,
        side_by_side: int,
        wants_stop: WantsStop,
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._wants_stop = wants_stop
        self._workers = cluster.num_workers
        self._side_by_side = side_by_side
        self._replicas = core.experiment.replicas
        self._step = 0
        self._servers = [Server(core, index, len(cluster.ps)) for index in range(len(cluster.ps))]
        self._clip = opaque(clip_scale)
        self._evaluate = {
            split: tf.function(self._build_evaluate(split), autograph=False)
            for split in core.splits
        }

    def check(self, facts: dict[str, Any]) -> None:
        """`ServerConnection.open` has checked the tasks, which build no core."""

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
        return evaluate_splits(self._core, final, self._compute_rows)

    def agree(self, own: bool) -> bool:
        return own  # the chief alone runs the loop

    def _compute_rows(self, split: str, count: int) -> np.ndarray:
        firsts = [tf.constant(first, tf.int64) for first in range(0, count, self._side_by_side)]
        with self._named_losses():
            turns = [self._coordinator.schedule(self._evaluate[split], (each,)) for each in firsts]
            self._coordinator.join()
            return np.concatenate([self._coordinator.fetch(turn) for turn in turns])

    def _build_evaluate(self, split: str) -> Callable[[tf.Tensor], tf.Tensor]:
        """Return the function first -> rows of one turn, for the graph of a worker."""
        evaluated = evaluated_vectors(self._core.layout.parts)

        def turn(first: tf.Tensor) -> tf.Tensor:
            _, (params, stats) = self._read(*evaluated)
            return self._core.evaluate_batches(split, params, stats, first, self._side_by_side)

        return turn

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
            gone = [address for address in self._cluster.ps if not answers(address)]
            if not gone:
                raise
            raise ConnectionError(
                f"the state is lost with the parameter server {', '.join(gone)}, which is gone"
            ) from error

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
        replicas = [partial(self._core.replica_vector, params, stats, step) for step in steps]
        return run_side_by_side(replicas, self._side_by_side)

    def _split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Return gradient, statistics and tail of a replica's vector. Fixed statistics are 0."""
        sizes, template = self._core.layout.sizes(), self._core.template
        parts = [sizes["params"], template.moving_size(), len(Tail)]
        gradient, moving, tail = tf.split(vector, parts)
        return [gradient, template.merge(tf.zeros([sizes["stats"]]), moving), tail]
