"""The parameter-server engine: workers compute replicas, parameter servers hold the state in slices, the chief leads.

On TensorFlow's `ParameterServerStrategy` and `ClusterCoordinator`, which runs again elsewhere what a lost worker was to compute. So
anything that a worker sends may come late, or twice. It therefore only puts its vector into a slot, with a stamp of what it was
computed for. The chief alone changes the state: the update takes the slots whose stamps are the ones it waits for, on all
parameter servers or on none, and a late vector in a slot is found out and computed again.

Data come to the workers as TensorFlow ops: what these read from files, each worker reads by itself; what they hold in memory
TensorFlow sends to each worker once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.config.cluster import Cluster
from paceline.config.job import Job
from paceline.core.evaluation import evaluate_splits
from paceline.core.metrics import SIGNALS, TAIL, Metrics, block_metrics, tail_scale
from paceline.core.replica import Core
from paceline.core.rounds import rates_of, run_side_by_side
from paceline.core.state import State, evaluated_vector
from paceline.core.tree import opaque, tree_sum
from paceline.core.update import Vectors, clip_scale, decay_mask, update_slice
from paceline.errors import UserError
from paceline.places.probe import answers
from paceline.worker import devices
from paceline.worker.build import build
from paceline.worker.fingerprint import cpu_features

STAMP = 2  # float32 places of an int64
TRIES = 5


def open_engine(job: Job, wants_stop: Callable[[], bool]) -> tuple[Core, ParameterServerEngine]:
    """Build the core, meet workers and parameter servers, and see that they can do their part."""
    devices.configure(job)
    _wait_for_all(job)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(job.cluster.tasks), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(
        resolver
    )  # before anything else touches a device
    core = build(job)
    check_servers(len(job.cluster.ps), core.layout.sizes()["params"])
    check_ops(core)
    _check_workers(job.cluster)
    gpus = [
        device for device in tf.config.list_logical_devices("GPU") if "/job:worker/" in device.name
    ]
    if job.place.devices == "gpu" and not gpus:
        raise UserError(
            "devices is gpu, but no worker has one; install the extra `gpu` there, or give --devices cpu"
        )
    kind = SynchronousEngine
    if core.experiment.sync.method == "async":
        kind = import_module("paceline.engines.parameter_server.asynchronous").AsynchronousEngine
    return core, kind(
        core, job.cluster, strategy, 1 if gpus else devices.side_by_side(job), wants_stop
    )


def _wait_for_all(job: Job) -> None:
    deadline = time.monotonic() + job.place.start_timeout
    while missing := [address for address in job.cluster.everyone[1:] if not answers(address)]:
        if time.monotonic() > deadline:
            raise ConnectionError(
                f"no answer from {', '.join(missing)} within {job.place.start_timeout:.0f} s"
            )
        time.sleep(0.1)


def check_servers(servers: int, params: int) -> None:
    if servers > params:
        raise UserError(
            f"there are {servers} parameter servers for {params} parameters; give {params} or fewer"
        )


def check_ops(core: Core) -> None:
    """A worker has the graph, but not the Python of this process."""
    number = tf.TensorSpec([], tf.int64)
    graph = core.batch.get_concrete_function(number, number).graph.as_graph_def()  # type: ignore[attr-defined]
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    python = [node.op for node in nodes if "PyFunc" in node.op]
    if python:
        raise UserError(
            f"the data are read by Python code ({python[0]}), which cannot travel to the workers of parameter servers; "
            "build the source of TensorFlow ops, or train without --ps"
        )


def _check_workers(cluster: Cluster) -> None:
    """The bits depend on the kind of CPU; every worker must have the chief's."""
    own = cpu_features()
    for index, address in enumerate(cluster.tasks["worker"]):
        with tf.device(f"/job:worker/task:{index}/cpu:0"):
            theirs = cpu_features(tf.io.read_file("/proc/cpuinfo").numpy().decode())
        if theirs != own:
            raise UserError(
                f"worker {index} ({address}) has another kind of CPU than the chief: {theirs}, not {own}"
            )


def bounds(size: int, count: int) -> list[tuple[int, int]]:
    """Where each of `count` slices of a vector begins and ends: equal ones, give or take one number."""
    return [(size * i // count, size * (i + 1) // count) for i in range(count)]


class Server:
    """What one parameter server holds: its slice of every vector, how many updates these have had, and slots for what workers send.

    A row of the slots is [gradient | statistics | more | stamp].
    """

    def __init__(self, core: Core, index: int, count: int) -> None:
        self.device, optimizer = f"/job:ps/task:{index}/cpu:0", core.experiment.optimizer
        self.slices = {
            name: slice(*bounds(size, count)[index]) for name, size in core.layout.sizes().items()
        }
        self.sizes = {name: own.stop - own.start for name, own in self.slices.items()}
        with tf.device(self.device):
            self.vectors = {
                name: tf.Variable(tf.zeros([size]), trainable=False)
                for name, size in self.sizes.items()
            }
            self.version = tf.Variable(0, trainable=False, dtype=tf.int64)
            mask = (
                decay_mask(optimizer, core.layout.parts["params"])[self.slices["params"]]
                if optimizer.weight_decay
                else None
            )
            self._decay = None if mask is None else tf.Variable(mask, trainable=False)
        self._update = opaque(partial(update_slice, optimizer))

    def open_slots(self, count: int, more: int) -> None:
        with tf.device(self.device):
            width = self.sizes["params"] + self.sizes["stats"] + more + STAMP
            self.slots = tf.Variable(tf.fill([count, width], -1.0), trainable=False)

    def put(
        self,
        slot: tf.Tensor,
        stamp: tf.Tensor,
        gradient: tf.Tensor,
        stats: tf.Tensor,
        more: tf.Tensor,
    ) -> None:
        """In the graph of a worker: write this server's part of whole vectors into a slot, at once."""
        pieces = [
            gradient[self.slices["params"]],
            stats[self.slices["stats"]],
            more,
            tf.bitcast(stamp, tf.float32),
        ]
        row = tf.concat(pieces, 0)
        with tf.device(self.device):
            self.slots.scatter_update(tf.IndexedSlices(row, slot))

    def split(self, row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Gradient, statistics and what else is in a row without its stamp."""
        gradient, stats, more = tf.split(row, [self.sizes["params"], self.sizes["stats"], -1])
        return gradient, stats, more

    def update(
        self, gradient: tf.Tensor, rates: tf.Tensor, scale: tf.Tensor | None = None
    ) -> Vectors:
        vectors = {name: tf.identity(variable) for name, variable in self.vectors.items()}
        return self._update(
            vectors,
            gradient,
            rates,
            None if self._decay is None else tf.identity(self._decay),
            scale,
        )

    def assign(self, new: Vectors, ready: tf.Tensor) -> None:
        """The new vectors, if everything was ready for the update."""
        for name, variable in self.vectors.items():
            variable.assign(tf.where(ready, new[name], variable))
        self.version.assign_add(tf.cast(ready, tf.int64))


def stamps(rows: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(rows[..., -STAMP:], tf.int64)


class ParameterServerEngine:
    """A state that lies on parameter servers: what synchronous and asynchronous training have in common.

    `lanes` is how many replicas of a worker run side by side, a power of two.
    """

    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        strategy: tf.distribute.ParameterServerStrategy,
        side_by_side: int,
        wants_stop: Callable[[], bool],
    ) -> None:
        self._core, self._cluster, self._wants_stop = core, cluster, wants_stop
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._replicas, self._workers, self._step = core.experiment.replicas, cluster.num_workers, 0
        self._lanes = 2 ** (side_by_side.bit_length() - 1)
        self._servers = [Server(core, index, len(cluster.ps)) for index in range(len(cluster.ps))]
        self._evaluate = {
            split: tf.function(self._build_evaluate(split), autograph=False)
            for split in core.splits
        }

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

    def evaluate(self, final: bool) -> Metrics:
        def rows_of(split: str, count: int) -> np.ndarray:
            with self._named_losses():
                turns = [
                    self._coordinator.schedule(
                        self._evaluate[split], args=(tf.constant(first, tf.int64),)
                    )
                    for first in range(0, count, self._lanes)
                ]
                self._coordinator.join()
                return np.concatenate([self._coordinator.fetch(turn) for turn in turns])

        return evaluate_splits(self._core, final, rows_of)

    def close(self) -> None:
        """Let everything end that still runs, and then the processes of workers and parameter servers."""
        self._coordinator.join()
        for role in ("worker", "ps"):
            for index in range(len(self._cluster.tasks[role])):
                with suppress(tf.errors.OpError), tf.device(f"/job:{role}/task:{index}/cpu:0"):
                    tf.raw_ops.Abort(error_msg="the chief has ended", exit_without_error=True)

    @contextmanager
    def _named_losses(self) -> Iterator[None]:
        """Say which parameter server is gone, where TensorFlow's error was caused by that."""
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
        """In the graph of a worker: the fewest updates that any slice of these vectors has had, and the vectors."""
        versions = [tf.identity(server.version) for server in self._servers]
        with tf.control_dependencies(versions):
            vectors = [
                tf.concat([tf.identity(server.vectors[name]) for server in self._servers], 0)
                for name in names
            ]
        return tf.reduce_min(tf.stack(versions)), vectors

    def _vectors_of(
        self, params: tf.Tensor, stats: tf.Tensor, places: list[tuple[tf.Tensor, tf.Tensor]]
    ) -> list[tf.Tensor]:
        """In the graph of a worker: the vectors of replicas, each a pair (step, replica), no more at a time than there are lanes."""
        signals = tf.zeros([len(SIGNALS)])
        replicas = [
            partial(self._core.replica_vector, params, stats, *place, signals) for place in places
        ]
        return run_side_by_side(replicas, self._lanes)

    def _parts_of(self, vector: tf.Tensor) -> list[tf.Tensor]:
        sizes = self._core.layout.sizes()
        return tf.split(vector, [sizes["params"], sizes["stats"], len(TAIL)])

    def _build_evaluate(self, split: str) -> Callable[[tf.Tensor], tf.Tensor]:
        """Whole batches from number `first` on, one in each lane."""
        weights = evaluated_vector(self._core.layout.parts)

        def turn(first: tf.Tensor) -> tf.Tensor:
            _, (params, stats) = self._read(weights, "stats")
            return self._core.evaluate_batches(split, params, stats, first, self._lanes)

        return turn


class SynchronousEngine(ParameterServerEngine):
    """Each worker's share of the replicas is a whole subtree; its sum lies in the slot of that share until all are there."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for server in self._servers:
            server.open_slots(self._workers, len(TAIL))
        self._share = tf.function(self._compute_share, autograph=False)
        self._apply = tf.function(self._apply_step, autograph=False)
        self._clip = opaque(clip_scale)

    def advance(self, start: int, stop: int) -> Metrics:
        began, tails = time.monotonic(), list[np.ndarray]()
        table = rates_of(self._core, start, stop)
        with self._named_losses():
            while self._step < stop and not (tails and self._wants_stop()):
                tails.append(self._advance_one(table[self._step - start]))
                self._step += 1
        seconds = (time.monotonic() - began) / len(tails)
        metrics = block_metrics(self._core, self._step, np.stack(tails), table, seconds)
        return metrics | {"stop_requested": self._wants_stop()}

    def _advance_one(self, rates_of_step: np.ndarray) -> np.ndarray:
        step, own_rates = tf.constant(self._step, tf.int64), tf.constant(rates_of_step)
        for _ in range(TRIES):
            for share in range(self._workers):
                self._coordinator.schedule(
                    self._share, args=(tf.constant([self._step, share], tf.int64),)
                )
            self._coordinator.join()
            ready, *tail = self._apply(step, own_rates).numpy()
            if ready:
                return np.array(tail)
        raise RuntimeError(
            f"late results of lost workers came in the way of step {self._step}, {TRIES} times"
        )

    def _compute_share(self, request: tf.Tensor) -> None:
        """On a worker: the sum over the replicas of a share, into its slot."""
        step, share = request[0], request[1]
        per_share = self._replicas // self._workers
        _, (params, stats) = self._read("params", "stats")
        vectors = self._vectors_of(
            params, stats, [(step, share * per_share + k) for k in range(per_share)]
        )
        gradient, new_stats, tail = self._parts_of(tree_sum(vectors))
        for server in self._servers:
            server.put(share, step, gradient, new_stats, tail)

    def _apply_step(self, step: tf.Tensor, rates_of_step: tf.Tensor) -> tf.Tensor:
        """The chief's, on all parameter servers: the rest of the tree and the update, if every slot is of this step. Answers whether,
        and the tail of the step: its loss and seconds are means over the replicas, all else sums."""
        parts, fresh = [], []
        for server in self._servers:
            with tf.device(server.device):
                rows = server.slots.read_value()
                fresh.append(tf.reduce_all(stamps(rows) == step))
                parts.append(server.split(tree_sum(tf.unstack(rows[:, :-STAMP])) / self._replicas))
        ready, limit = tf.reduce_all(tf.stack(fresh)), self._core.experiment.optimizer.clip_norm
        # the norm's bits depend on how its sum is cut, so it is taken of the whole
        scale = (
            self._clip(tf.concat([gradient for gradient, _, _ in parts], 0), limit)
            if limit
            else None
        )
        for server, (gradient, stats, _) in zip(self._servers, parts, strict=True):
            with tf.device(server.device):
                server.assign(
                    {**server.update(gradient, rates_of_step, scale), "stats": stats}, ready
                )
        tail = parts[0][2] * tail_scale(self._replicas)
        return tf.concat([tf.cast(ready, tf.float32)[None], tail], 0)
