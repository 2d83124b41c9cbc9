"""The collective engine: one device, mirrored devices, or several processes.

Each device holds the whole state and computes its share of the replicas. The sums of its subtrees
meet those of the others through sockets (`peers`), and between GPUs by NCCL (`network`). Every
device applies the same update to its own copy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from paceline.engines import devices
from paceline.engines.base import WantsStop, check_facts
from paceline.engines.memory import StateMemory
from paceline.engines.peers import Peers, find_neighbors
from paceline.errors import UserError
from paceline.experiment.fields import Json
from paceline.experiment.schedule import rates_table
from paceline.job import Job
from paceline.kernels.arithmetic import number, plain
from paceline.maths.metrics import BlockResult, EvalResult, Tail, block_result, evaluate_splits
from paceline.maths.replica import Core, Round, add
from paceline.maths.state import State, evaluated_vectors
from paceline.maths.sums import Span, divided_tree, mean_factor, subtree_sums

if TYPE_CHECKING:
    from paceline.engines.network import Network


def connect(job: Job, wants_stop: WantsStop) -> Callable[[Core], CollectiveEngine]:
    """Connect to the other workers."""
    strategy, addresses = devices.build_strategy(job), job.cluster.addresses
    exchange = find_neighbors(job.cluster.index)
    if addresses and not exchange and strategy.num_replicas_in_sync == 1:
        from paceline.engines.hosts import meet

        exchange = meet(job.cluster)

    def open_engine(core: Core) -> CollectiveEngine:
        lanes = devices.own_share(job).side_by_side
        return CollectiveEngine(core, strategy, lanes, wants_stop, exchange, addresses)

    return open_engine


class CollectiveEngine:
    """A state on the devices of one strategy; each runs `side_by_side` replicas at a time."""

    def __init__(
        self,
        core: Core,
        strategy: tf.distribute.Strategy,
        side_by_side: int,
        wants_stop: WantsStop = lambda: False,
        exchange: Peers | None = None,
        addresses: Sequence[str] = (),
    ) -> None:
        self._core = core
        self._strategy = strategy
        self._side_by_side = side_by_side
        self._wants_stop = wants_stop
        self._exchange: Peers | Network | None = exchange
        self._check_order: Callable[[int], None] = lambda replicas: None
        if strategy.num_replicas_in_sync > 1:
            from paceline.engines.network import Network

            self._exchange = network = Network(strategy)
            self._check_order = network.check
        self._members = self._exchange.members if self._exchange else 1
        self._alone = self._members == len(strategy.extended.worker_devices)
        self._addresses = addresses
        self._step = 0
        self._seconds = 0.0  # for each step of the last block
        self._began = time.monotonic()
        self._memory = StateMemory(strategy, core.layout.sizes(), core.tail_size)
        self._vectors = self._memory.vectors
        self._block = tf.function(self._train_block, autograph=False, reduce_retracing=True)
        self._evaluate = tf.function(self._evaluate_turn, autograph=False)

    def check(self, facts: Json) -> None:
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
            with suppress(tf.errors.OpError, ConnectionError):
                self.close()
            raise
        self._check_order(self._core.experiment.replicas)

    def load(self, state: State) -> State:
        state = state if self._alone else self._take_from_chief(state)
        self._step = state.step
        self._memory.load(state)
        return state

    def _take_from_chief(self, own: State) -> State:
        step, num_tails = self.gather(np.array([own.step, len(own.tails)], np.int64))[0].tolist()
        tails = np.resize(own.tails, num_tails * self._core.tail_size)
        joined = self.gather(np.concatenate([*own.vectors.values(), tails]))[0]
        sizes = self._core.layout.sizes()
        *pieces, tails = np.split(joined, np.cumsum(list(sizes.values())))
        vectors = dict(zip(sizes, pieces, strict=True))
        return State(step, vectors, tails.reshape(-1, self._core.tail_size))

    def state(self) -> State:
        return self._memory.state(self._step)

    def held(self) -> State | None:
        """Return the newest state of this worker with its tails; None if there is no whole one. Any
        thread may call it at any time, even while the engine waits for a worker that is lost."""
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
        # of NumPy: TensorFlow keeps a tensor of every number of Python that it gets, for ever
        bounds = tf.constant(np.int64(start)), tf.constant(np.int64(stop))
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
                own = self._evaluate(split, tf.constant(first, tf.int64)).numpy()
                rows.append(self.gather(own.ravel()).reshape(-1, own.shape[1]))
            return np.concatenate(rows)

        return evaluate_splits(self._core, final, rows_of)

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """Return one vector of each worker, of equal size and type, as rows in worker order."""
        return self._exchange.gather(vector) if self._exchange else vector[None]

    def agree(self, own: bool) -> bool:
        return bool(self.gather(np.array([own], np.float32))[0, 0])

    def close(self) -> None:
        # no worker leaves before the chief, whose process the others need
        self.gather(np.zeros(1, np.float32))
        if self._exchange:
            self._exchange.close()

    def _local(self, value: tf.Tensor) -> tf.Tensor:
        """Return this worker's first copy of a value that every device has."""
        return self._strategy.experimental_local_results(value)[0]

    def _train_block(
        self, start: tf.Tensor, stop: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> tf.Tensor:
        """Return the tails of the steps [start, stop), or of fewer if a worker wants to stop."""
        length, tail_size = self._core.plan.round_steps, self._core.tail_size

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
        empty = tf.TensorArray(tf.float32, count, element_shape=[length, tail_size])
        # two iterations at a time: the next batch is prepared while this one is trained on
        last, _, rounds = tf.while_loop(
            continues, body, [start, tf.constant(False), empty], parallel_iterations=2
        )
        return tf.reshape(rounds.stack(), [-1, tail_size])[: last - start]

    def _train_round(
        self, first: tf.Tensor, last: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Train one round in a replica context; return its tails, and `last` once it is written."""
        vectors = {name: tf.identity(variable) for name, variable in self._vectors.items()}
        now, spans = Round(vectors, first, last, table, signals), self._spans()
        start, count = tf.constant(spans[0][0], tf.int64), spans[-1][1] - spans[0][0]
        on_gpu = any("GPU" in device for device in self._strategy.extended.worker_devices)
        results = self._core.round_vectors(now, start, count, self._side_by_side, int(on_gpu))
        mean = plain(number(self._sum(results)) * mean_factor(self._core.experiment.replicas))
        new, tails = self._core.finish_round(vectors, mean, table)
        return tails, self._memory.update(new, last)

    def _own_index(self) -> int:
        """Return the number of this device among those of all workers, in a replica context."""
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        own = int(tf.get_static_value(index))
        return own + self._exchange.index if self._exchange else own

    def _spans(self) -> tuple[Span, ...]:
        """Return the subtrees of this device's share of the replicas, in a replica context."""
        return divided_tree(self._core.experiment.replicas, self._members)[self._own_index()]

    def _sum(self, results: list[tf.Tensor]) -> tf.Tensor:
        """Return the sum over all replicas from the vectors of this device's share."""
        replicas, sums = self._core.experiment.replicas, subtree_sums(results, self._spans(), add)
        if self._exchange is None:
            return sums[0]
        return self._exchange.total(replicas, self._own_index(), sums)

    def _evaluate_turn(self, split: str, first: tf.Tensor) -> tf.Tensor:
        """Return this worker's rows of one turn from batch `first` on: `side_by_side` a device."""
        evaluated = [self._vectors[name] for name in evaluated_vectors(self._vectors)]

        def on_device(first: tf.Tensor) -> tf.Tensor:
            own_first = first + self._own_index() * self._side_by_side
            params, stats = map(tf.identity, evaluated)
            return self._core.evaluate_batches(split, params, stats, own_first, self._side_by_side)

        rows = self._strategy.run(on_device, args=(first,))
        return tf.concat(self._strategy.experimental_local_results(rows), 0)
