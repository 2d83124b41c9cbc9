"""Synchronous training on parameter servers: the same bits as one process."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.engines_more.parameter_server.ps_base import STAMP, ParameterServerEngine, stamps
from paceline.experiment.schedule import Rates, rates_table
from paceline.kernels.arithmetic import number, plain
from paceline.maths.metrics import BlockResult, block_result, tail_scale
from paceline.maths.replica import add
from paceline.maths.sums import Span, add_subtrees, divided_tree, mean_factor, subtree_sums

TRIES = 5


class SynchronousEngine(ParameterServerEngine):
    """Updates the state when every worker's share of a step is in its slots.

    There is a slot for each subtree of a share of the replicas; it holds the sum of the subtree.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shares = divided_tree(self._replicas, self._workers)
        self._subtrees = [span for spans in self._shares for span in spans]
        for server in self._servers:
            server.open_slots(len(self._subtrees), self._core.tail_size)
        self._compute = {
            shape: tf.function(partial(self._compute_share, shape), autograph=False)
            for shape in map(relative, self._shares)
        }
        self._apply = tf.function(self._apply_step, autograph=False)

    def advance(self, start: int, stop: int) -> BlockResult:
        began = time.monotonic()
        table = rates_table(self._core.experiment, self._core.plan, start, stop)
        tails = list[np.ndarray]()
        with self._named_losses():
            while self._step < stop and not (tails and self._wants_stop()):
                tails.append(self._advance_one(table[self._step - start]))
                self._step += 1
        seconds = (time.monotonic() - began) / len(tails)
        block = block_result(self._core, self._step, np.stack(tails), seconds)
        return replace(block, stop_requested=self._wants_stop())

    def _advance_one(self, rates: np.ndarray) -> np.ndarray:
        """Train one step and return its tail."""
        for _ in range(TRIES):
            for spans in self._shares[self._chief_trains :]:
                self._coordinator.schedule(*self._share(spans))
            if self._chief_trains:  # it computes the first share beside the workers
                compute, arguments = self._share(self._shares[0])
                compute(*arguments)
            self._coordinator.join()
            step = tf.constant(np.int64(self._step))  # TensorFlow keeps those of Python for ever
            ready, *tail = self._apply(step, tf.constant(rates)).numpy()
            if ready:
                return np.array(tail)
        raise RuntimeError(
            f"late results of lost workers replaced those of step {self._step} {TRIES} times"
        )

    def _share(self, spans: tuple[Span, ...]) -> tuple[Callable[..., None], tuple[tf.Tensor]]:
        """Return the function that computes a share of the step, and its arguments."""
        slot = self._subtrees.index(spans[0])
        request = tf.constant([self._step, spans[0][0], slot], tf.int64)
        return self._compute[relative(spans)], (request,)

    def _compute_share(self, shape: tuple[Span, ...], request: tf.Tensor) -> None:
        """On a worker: put the sums of the subtrees of a share into their slots."""
        step, first_replica, first_slot = tf.unstack(request, num=3)
        _, (params, stats) = self._read("params", "stats")
        which = [(step, first_replica + k) for k in range(shape[-1][1])]
        sums = subtree_sums(self._replica_vectors(params, stats, which), shape, add)
        for k, total in enumerate(sums):
            gradient, new_stats, tail = self._split(total)
            for server in self._servers:
                server.put(first_slot + k, step, gradient, new_stats, tail)

    def _apply_step(self, step: tf.Tensor, rates: tf.Tensor) -> tf.Tensor:
        """On all parameter servers, for the chief: finish the sum and update the state. Nothing
        changes unless every slot is of this step. Returns [whether it was | tail]."""
        parts, fresh = [], []
        for server in self._servers:
            with tf.device(server.device):
                rows = server.slots.read_value()
                fresh.append(tf.reduce_all(stamps(rows) == step))
                sums = dict(zip(self._subtrees, tf.unstack(rows[:, :-STAMP]), strict=True))
                total = add_subtrees((0, self._replicas), sums, add)
                parts.append(server.split(plain(number(total) * mean_factor(self._replicas))))
        ready = tf.reduce_all(tf.stack(fresh))
        limit = self._core.experiment.optimizer.clip_norm
        if limit:  # the bits of a norm depend on how its sum is cut, so it is taken of the whole
            scale = self._clip(tf.concat([gradient for gradient, _, _ in parts], 0), limit)
        for server, (gradient, stats, _) in zip(self._servers, parts, strict=True):
            if limit:
                with tf.device(server.device):
                    gradient = plain(number(gradient) * scale)
            server.update(gradient, stats, Rates.of_row(rates), ready)
        tail = parts[0][2] * tail_scale(self._replicas)
        return tf.concat([tf.cast(ready, tf.float32)[None], tail], 0)


def relative(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Return the subtrees of a share as if its first replica were replica 0. Shares that are equal
    in this way can use the same compiled graph."""
    first = spans[0][0]
    return tuple((start - first, stop - first) for start, stop in spans)
