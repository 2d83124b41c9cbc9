"""Asynchronous training on parameter servers: each gradient is applied when it arrives.

A step is as many applied gradients as there are replicas, each with that share of the learning
rate. Momentum, decay and the moving average of weights count applied gradients. A gradient is
computed for a ticket, which is a step and a replica; the ticket decides its images. The learning
rate depends on when the gradient arrives. The bits are not reproducible, and gradients under way
when training stops are lost.
"""

import queue
import threading
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from paceline.engines_more.parameter_server.ps_base import STAMP, ParameterServerEngine, stamps
from paceline.experiment.schedule import Rates, bias_correction, rates_at
from paceline.maths.metrics import BlockResult, block_result, tail_scale
from paceline.maths.replica import opaque
from paceline.maths.state import State


class Flights:
    """The gradients under way, and whether more may start without one exceeding the bound.

    The staleness of a gradient is the number of others that were applied after its weights were
    read. All gradients under way at the same time may be applied before it. So it is at most the
    number applied since the gradient started, plus all others under way.
    """

    def __init__(self, bound: int, applied: int = 0) -> None:
        self._bound = bound
        self.applied = applied
        self._started = dict[int, int]()  # ticket -> how many were applied when it started

    def may_start(self, count: int) -> bool:
        oldest = min(self._started.values(), default=self.applied)
        stalest = self.applied - oldest + len(self._started) + count - 1
        return self._bound < 0 or stalest <= self._bound

    def start(self, ticket: int) -> None:
        self._started[ticket] = self.applied

    def land(self, ticket: int) -> None:
        del self._started[ticket]
        self.applied += 1


class Arrival(NamedTuple):
    """A gradient that is in its slot; `version` counts the updates of its weights."""

    ticket: int
    slot: int
    tail: np.ndarray
    version: int


class AsynchronousEngine(ParameterServerEngine):
    """Applies gradients in the order of their arrival.

    Every worker computes all the time, `side_by_side` gradients at once.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._bound = self._core.experiment.sync.max_staleness
        if self._bound >= 0:
            self._side_by_side = min(self._side_by_side, self._bound + 1)
        for server in self._servers:
            server.open_slots(self._workers * self._side_by_side, server.sizes["stats"])
        self._gradients = tf.function(self._compute_gradients, autograph=False)
        self._apply = tf.function(self._apply_gradient, autograph=False)
        self._idle = threading.Lock()
        """Held while the chief itself computes (`chief_trains`)."""
        # in this order of operations, one replica that is never stale gets exactly its new ones
        part = self._replicas
        self._move = opaque(lambda current, old, new: (current - old / part) + new / part)

    def load(self, state: State) -> State:
        self._ticket = state.step * self._replicas
        self._flights = Flights(self._bound, self._ticket)
        self._arrivals = queue.SimpleQueue[Arrival | Exception]()
        self._free = list(range(self._workers * self._side_by_side))
        for server in self._servers:
            server.version.assign(self._ticket)
        return super().load(state)

    def advance(self, start: int, stop: int) -> BlockResult:
        began = time.monotonic()
        goal = stop * self._replicas
        tails, staleness = list[np.ndarray](), list[int]()
        with self._named_losses():
            while self._flights.applied < goal:
                self._start_gradients()
                arrival = self._next_arrival()
                if self._apply_arrival(arrival):
                    tails.append(arrival.tail)
                    staleness.append(self._flights.applied - arrival.version)
                    self._flights.land(arrival.ticket)
                    self._free.append(arrival.slot)
                else:  # a late write of a lost worker is in its slot
                    self._schedule([arrival.ticket], [arrival.slot])
                if self._wants_stop():
                    steps = max(start + 1, -(-self._flights.applied // self._replicas))
                    goal = steps * self._replicas
        self._step = goal // self._replicas
        steps_tails = np.stack(tails).reshape(self._step - start, self._replicas, -1).mean(1)
        seconds = (time.monotonic() - began) / (self._step - start)
        return replace(
            block_result(self._core, self._step, steps_tails * tail_scale(self._replicas), seconds),
            stop_requested=self._wants_stop(),
            more={"staleness_mean": float(np.mean(staleness)), "staleness_max": max(staleness)},
        )

    def _start_gradients(self) -> None:
        count = self._side_by_side
        while len(self._free) >= count and self._flights.may_start(count):
            tickets = list(range(self._ticket, self._ticket + count))
            self._ticket += count
            for ticket in tickets:
                self._flights.start(ticket)
            self._schedule(tickets, [self._free.pop() for _ in tickets])

    def _schedule(self, tickets: list[int], slots: list[int]) -> None:
        request = tf.constant([tickets, slots], tf.int64)
        own = self._chief_trains and self._idle.acquire(blocking=False)
        value = None if own else self._coordinator.schedule(self._gradients, (request,))

        def wait() -> None:
            try:
                rows = value.fetch() if value else self._gradients(request).numpy()
            except Exception as error:
                if not own:  # the coordinator knows
                    raise
                self._arrivals.put(error)
                return
            finally:
                if own:
                    self._idle.release()
            for ticket, slot, row in zip(tickets, slots, rows, strict=True):
                self._arrivals.put(Arrival(ticket, slot, row[:-1], int(row[-1])))

        # a thread, because the coordinator does not report when a result is there
        threading.Thread(target=wait, daemon=True).start()

    def _next_arrival(self) -> Arrival:
        while True:
            try:
                arrival = self._arrivals.get(timeout=1.0)
            except queue.Empty:
                self._coordinator.done()  # raises an error that another worker cannot correct
                continue
            if isinstance(arrival, Exception):
                raise arrival
            return arrival

    def _apply_arrival(self, arrival: Arrival) -> bool:
        """Update the state by the gradient in its slot; return False if it is not there."""
        experiment, applied = self._core.experiment, self._flights.applied
        rates = rates_at(experiment, self._core.plan, applied // self._replicas)
        rates = rates._replace(
            learning_rate=rates.learning_rate / self._replicas,
            bias_1=bias_correction(experiment.optimizer.momentum, applied + 1),
            bias_2=bias_correction(experiment.optimizer.beta_2, applied + 1),
            groups=[rate / self._replicas for rate in rates.groups],
        )
        which = tf.constant([arrival.ticket, arrival.slot], tf.int64)
        return bool(self._apply(which, tf.constant(rates.row(), tf.float32)).numpy())

    def _compute_gradients(self, request: tf.Tensor) -> tf.Tensor:
        """On a worker: put the gradients of some tickets into their slots. Returns a row [tail |
        version of the weights] for each ticket."""
        tickets, slots = (tf.unstack(row) for row in tf.unstack(request, num=2))
        version, (params, stats) = self._read("params", "stats")
        which = [(ticket // self._replicas, ticket % self._replicas) for ticket in tickets]
        vectors = self._replica_vectors(params, stats, which)
        limit, tails = self._core.experiment.optimizer.clip_norm, []
        for vector, ticket, slot in zip(vectors, tickets, slots, strict=True):
            gradient, new_stats, tail = self._split(vector)
            gradient = gradient * self._clip(gradient, limit) if limit else gradient
            for server in self._servers:
                server.put(slot, ticket, gradient, new_stats, stats[server.slices["stats"]])
            tails.append([*tf.unstack(tf.cast(tail, tf.float64)), tf.cast(version, tf.float64)])
        return tf.convert_to_tensor(tails)

    def _apply_gradient(self, request: tf.Tensor, rates: tf.Tensor) -> tf.Tensor:
        """On all parameter servers: update by one gradient; return whether it was in its slot. The
        statistics move by a replica's part of their change."""
        rows, fresh = [], []
        for server in self._servers:
            with tf.device(server.device):
                rows.append(tf.gather(server.slots, request[1]))
                fresh.append(stamps(rows[-1]) == request[0])
        ready = tf.reduce_all(tf.stack(fresh))
        for server, row in zip(self._servers, rows, strict=True):
            with tf.device(server.device):
                gradient, new, old = server.split(row[:-STAMP])
                stats = self._move(tf.identity(server.vectors["stats"]), old, new)
            server.update(gradient, stats, Rates.of_row(rates), ready)
        return ready
