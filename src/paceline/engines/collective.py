"""The collective engine: replicas meet in `tf.distribute`.

It runs on one device, on mirrored devices, or in several processes. Each device holds the whole
state and computes its share of the replicas. The sums of its subtrees meet those of the others in
exchanges between pairs (`pairs`), or for workers of one machine in shared memory (`shared_memory`),
and every device applies the same update to its own copy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.engines import devices
from paceline.engines.base import WantsStop, check_facts
from paceline.engines.memory import Memory
from paceline.engines.shared_memory import Neighbors, find_neighbors, shared_sum
from paceline.errors import UserError
from paceline.experiment.schedule import rates_table
from paceline.job import Job
from paceline.kernels.arithmetic import number, plain
from paceline.maths.metrics import BlockResult, EvalResult, Tail, block_result, evaluate_splits
from paceline.maths.replica import Core, Round, add
from paceline.maths.state import State, evaluated_vectors
from paceline.maths.sums import Span, divided_tree, mean_factor, subtree_sums


def connect(job: Job, wants_stop: WantsStop) -> Callable[[Core], CollectiveEngine]:
    """Connect to the other workers in one strategy of `tf.distribute`."""
    if job.place.kind.platform_restarts and job.cluster.num_workers > 1:
        from paceline.engines.probe import wait_for_tasks

        wait_for_tasks(job.cluster)
    strategy = devices.build_strategy(job)

    def open_engine(core: Core) -> CollectiveEngine:
        lanes, neighbors = devices.side_by_side(job), find_neighbors(job.cluster.index)
        addresses = job.cluster.addresses
        return CollectiveEngine(core, strategy, lanes, wants_stop, neighbors, addresses)

    return open_engine


class CollectiveEngine:
    """A state on the devices of one strategy; each runs `side_by_side` replicas at a time."""

    def __init__(
        self,
        core: Core,
        strategy: tf.distribute.Strategy,
        side_by_side: int,
        wants_stop: WantsStop = lambda: False,
        neighbors: Neighbors | None = None,
        addresses: Sequence[str] = (),
    ) -> None:
        self._core = core
        self._strategy = strategy
        self._side_by_side = side_by_side
        self._wants_stop = wants_stop
        own = strategy.extended.worker_devices
        self._per_worker, self._members = len(own), strategy.num_replicas_in_sync
        self._alone = self._per_worker == self._members
        self._on_gpus = any("GPU" in device for device in own)
        # several devices and GPUs exchange vectors by TensorFlow's collectives
        self._neighbors = None if self._per_worker > 1 or self._on_gpus else neighbors
        self._addresses = addresses
        self._step = 0
        self._seconds = 0.0  # for each step of the last block
        self._began = time.monotonic()
        self._memory = Memory(strategy, core.layout.sizes())
        self._vectors = self._memory.vectors
        self._block = tf.function(self._train_block, autograph=False, reduce_retracing=True)
        self._evaluate = tf.function(self._evaluate_turn, autograph=False)

    def check(self, facts: dict[str, Any]) -> None:
        text = json.dumps(facts, sort_keys=True).encode()
        lengths = self.gather(np.array([len(text)], np.int64))[:, 0]
        padded = np.frombuffer(text.ljust(int(lengths.max()), b" "), np.uint8).astype(np.int32)
        chiefs, *others = self.gather(padded).astype(np.uint8)
        try:
            for index, row in enumerate(others, 1):
                what = f"worker {index} ({self._addresses[index]}) differs from the chief"
                check_facts(what, json.loads(bytes(chiefs)), json.loads(bytes(row)))
        except UserError:
            # The others read these facts from this process. If it left before that, they would see
            # only a lost worker, and a platform would restart them for ever. A worker that has left
            # knows the verdict already.
            with suppress(tf.errors.OpError):
                self.close()
            raise
        self._check_exchange()

    def load(self, state: State) -> State:
        state = state if self._alone else self._take_from_chief(state)
        self._step = state.step
        self._memory.load(state)
        return state

    def _take_from_chief(self, own: State) -> State:
        step, num_tails = self.gather(np.array([own.step, len(own.tails)], np.int64))[0].tolist()
        tails = np.resize(own.tails, num_tails * len(Tail))
        joined = self.gather(np.concatenate([*own.vectors.values(), tails]))[0]
        sizes = self._core.layout.sizes()
        *pieces, tails = np.split(joined, np.cumsum(list(sizes.values())))
        vectors = dict(zip(sizes, pieces, strict=True))
        return State(step, vectors, tails.reshape(-1, len(Tail)))

    def state(self) -> State:
        return self._memory.state(self._step)

    def held(self) -> State | None:
        state = self._memory.held()
        if state is None or not np.isfinite(state.tails[:, Tail.LOSS]).all():
            return None
        seconds = self._seconds or (time.monotonic() - self._began) / max(1, len(state.tails))
        state.tails[:, Tail.SECONDS] = seconds
        state.tails[:, Tail.STOP] = 0.0  # a request to stop was one to this attempt
        return state

    def advance(self, start: int, stop: int) -> BlockResult:
        began = self._began = time.monotonic()
        table = rates_table(self._core.experiment, self._core.plan, start, stop)
        bounds = tf.constant(start, tf.int64), tf.constant(stop, tf.int64)
        signals = tf.constant([float(self._wants_stop()), self._seconds])
        tails = self._block(*bounds, tf.constant(table), signals).numpy()
        self._step = start + len(tails)
        self._seconds = (time.monotonic() - began) / len(tails)
        block = block_result(self._core, self._step, tails, self._seconds)
        if self._alone:
            return block
        # all workers must choose the same length of the next block
        return replace(block, seconds_per_step=float(tails[-1, Tail.SECONDS]))

    def evaluate(self, final: bool) -> EvalResult:
        def rows_of(split: str, count: int) -> np.ndarray:
            rows = []
            for first in range(0, count, self._members * self._side_by_side):
                self._wants_stop()  # an evaluation is not cut short; this shows that it is active
                rows.append(_in_order(self._evaluate(split, tf.constant(first, tf.int64)).numpy()))
            return np.concatenate(rows)

        return evaluate_splits(self._core, final, rows_of)

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """Return one vector of each worker, of equal size and type, as rows in worker order."""
        if self._alone:
            return vector[None]
        rows = self._local(self._gather(tf.constant(vector))).numpy()
        return _in_order(rows)[:: self._per_worker]

    @tf.function(autograph=False, reduce_retracing=True)
    def _gather(self, vector: tf.Tensor) -> tf.Tensor:
        def on_device(own: tf.Tensor) -> tf.Tensor:
            row = tf.concat([tf.cast([_own_index()], own.dtype), own], 0)
            return tf.distribute.get_replica_context().all_gather(row[None], axis=0)

        return self._strategy.run(on_device, args=(vector,))

    def agree(self, own: bool) -> bool:
        return bool(self.gather(np.array([own], np.float32))[0, 0])

    def close(self) -> None:
        # no worker leaves before the chief, whose process the others need
        self.gather(np.zeros(1, np.float32))

    def _local(self, value: tf.Tensor) -> tf.Tensor:
        """Return this worker's first copy of a value that every device has."""
        return self._strategy.experimental_local_results(value)[0]

    def _train_block(
        self, start: tf.Tensor, stop: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> tf.Tensor:
        """Return the tails of the steps [start, stop), or of fewer if a worker wants to stop."""
        length = self._core.plan.round_steps

        def continues(first: tf.Tensor, stopped: tf.Tensor, _: tf.TensorArray) -> tf.Tensor:
            return (first < stop) & ~stopped

        def body(first: tf.Tensor, _: tf.Tensor, rounds: tf.TensorArray) -> tuple[tf.Tensor, ...]:
            last = tf.minimum(first + length, stop)
            rates = table[first - start : last - start]
            of_devices = self._strategy.run(self._train_round, args=(first, last, rates, signals))
            tails, written = map(self._local, of_devices)
            self._memory.finish(first, written, tails)
            # every worker has the same tails, so all stop after the same round
            stopped = tails[0, Tail.STOP] > 0
            index = tf.cast((first - start) // length, tf.int32)
            return last, stopped, rounds.write(index, tails)

        count = tf.cast((stop - start + length - 1) // length, tf.int32)
        empty = tf.TensorArray(tf.float32, count, element_shape=[length, len(Tail)])
        # two iterations at a time: the next batch is prepared while this one is trained on
        last, _, rounds = tf.while_loop(
            continues, body, [start, tf.constant(False), empty], parallel_iterations=2
        )
        return tf.reshape(rounds.stack(), [-1, len(Tail)])[: last - start]

    def _train_round(
        self, first: tf.Tensor, last: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Train one round in a replica context; return its tails, and `last` once it is written."""
        vectors = {name: tf.identity(variable) for name, variable in self._vectors.items()}
        now, spans = Round(vectors, first, last, table, signals), self._spans()
        start, count = tf.constant(spans[0][0], tf.int64), spans[-1][1] - spans[0][0]
        results = self._core.round_vectors(now, start, count, self._side_by_side)
        factor = mean_factor(self._core.experiment.replicas)
        mean = plain(number(self._sum(results)) * factor)
        new, tails = self._core.finish_round(vectors, mean, table)
        return tails, self._memory.update(new, last)

    def _spans(self) -> tuple[Span, ...]:
        """Return the subtrees of this device's share of the replicas, in a replica context."""
        return divided_tree(self._core.experiment.replicas, self._members)[_own_index()]

    def _sum(self, results: list[tf.Tensor]) -> tf.Tensor:
        """Return the sum over all replicas from the vectors of this device's share."""
        replicas, own = self._core.experiment.replicas, _own_index()
        sums = subtree_sums(results, self._spans(), add)
        if self._members == 1:
            return sums[0]
        if self._neighbors:
            return shared_sum(replicas, self._members, own, self._neighbors, sums)
        from paceline.engines.pairs import Collectives, ExactSum

        swap = Collectives(own, self._per_worker, ordered=self._on_gpus).swap
        return ExactSum(replicas, self._members, own, swap, add).total(sums)

    def _check_exchange(self) -> None:
        """Raise an error if TensorFlow gathers in a different order, which is not documented."""
        if self._members == 1:
            return
        replicas = self._core.experiment.replicas
        leaves = (np.arange(101) * 7 + np.arange(replicas)[:, None] * 13) % 31.0

        def on_device() -> tf.Tensor:
            spans = self._spans()
            own = leaves[spans[0][0] : spans[-1][1]]
            return self._sum(tf.unstack(tf.constant(own, tf.float32)))

        total = tf.function(lambda: self._strategy.run(on_device), autograph=False)()
        for found in self._strategy.experimental_local_results(total):
            if not np.array_equal(found, leaves.sum(0)):
                raise RuntimeError(
                    "the exchange between workers gives a wrong sum: this version of TensorFlow "
                    "orders devices in another way; use the version of constraints.txt"
                )

    def _evaluate_turn(self, split: str, first: tf.Tensor) -> tf.Tensor:
        """Return the rows of one turn from batch `first` on: `side_by_side` on each device."""
        count = self._side_by_side
        evaluated = [self._vectors[name] for name in evaluated_vectors(self._vectors)]

        def on_device(first: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            own_first = first + tf.cast(context.replica_id_in_sync_group, tf.int64) * count
            params, stats = map(tf.identity, evaluated)
            rows = self._core.evaluate_batches(split, params, stats, own_first, count)
            numbers = tf.cast(own_first + tf.range(count, dtype=tf.int64), rows.dtype)
            rows = tf.concat([numbers[:, None], rows], 1)
            return rows if self._members == 1 else context.all_gather(rows, axis=0)

        return self._local(self._strategy.run(on_device, args=(first,)))


def _in_order(rows: np.ndarray) -> np.ndarray:
    """Sort rows by their first column and drop it.

    TensorFlow gathers in an order of its own, in which worker 10 is before worker 2.
    """
    return rows[np.argsort(rows[:, 0], kind="stable")][:, 1:]


def _own_index() -> int:
    """Return the number of this device among those of all workers, in a replica context."""
    index = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(index))
