"""Asynchronous training on parameter servers: each replica's gradient is applied when it arrives.

A step is as many applied gradients as there are replicas, each with that share of the learning rate. Momentum, decay and the moving average
of weights go by applied gradients. What a gradient was computed for (a ticket: step and replica) decides its pictures; the rate
with which it is applied goes by when it arrives. It promises learning, not bits; what is on its way when training stops is lost.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from paceline.config.schedule import learning_rate
from paceline.core.metrics import Metrics, block_metrics, tail_scale
from paceline.core.rounds import rates_of
from paceline.core.state import State
from paceline.core.tree import opaque
from paceline.core.update import clip_scale
from paceline.engines.parameter_server.engine import STAMP, ParameterServerEngine, stamps


class Flights:
    """Which gradients are on their way, and whether more may start without any of them becoming staler than the bound.

    The staleness of a gradient is the number of others that were applied after its weights were read. All that are under way at
    the same time may be applied before it: so counted are those applied since it started, and all others under way.
    """

    def __init__(self, bound: int, applied: int = 0) -> None:
        self._bound, self.applied, self._started = bound, applied, dict[int, int]()

    def may_start(self, count: int) -> bool:
        oldest = min(self._started.values(), default=self.applied)
        return (
            self._bound < 0 or self.applied - oldest + len(self._started) + count - 1 <= self._bound
        )

    def start(self, ticket: int) -> None:
        self._started[ticket] = self.applied

    def land(self, ticket: int) -> None:
        del self._started[ticket]
        self.applied += 1


class Arrival(NamedTuple):
    """A gradient that lies in its slot; the weights it was computed from had `version` updates."""

    ticket: int
    slot: int
    tail: np.ndarray
    version: int


class AsynchronousEngine(ParameterServerEngine):
    """Every worker computes all the time, `lanes` gradients at once; the chief applies them in the order of their arrival."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._bound = self._core.experiment.sync.max_staleness
        if self._bound >= 0:
            self._lanes = min(self._lanes, 2 ** ((self._bound + 1).bit_length() - 1))
        for server in self._servers:
            server.open_slots(self._workers * self._lanes, server.sizes["stats"])
        self._gradients = tf.function(self._compute_gradients, autograph=False)
        self._apply = tf.function(self._apply_gradient, autograph=False)
        self._clip, self._move = opaque(clip_scale), opaque(self._moved_stats)

    def load(self, state: State) -> State:
        self._ticket = state.step * self._replicas
        self._flights, self._arrivals = (
            Flights(self._bound, self._ticket),
            queue.SimpleQueue[Arrival](),
        )
        self._free = list(range(self._workers * self._lanes))
        for server in self._servers:
            server.version.assign(self._ticket)
        return super().load(state)

    def advance(self, start: int, stop: int) -> Metrics:
        began, tails, staleness = time.monotonic(), list[np.ndarray](), list[int]()
        goal = stop * self._replicas
        with self._named_losses():
            while self._flights.applied < goal:
                self._start_gradients()
                arrival = self._next_arrival()
                applied = self._flights.applied
                if self._apply(*self._request(arrival)).numpy():
                    tails.append(arrival.tail)
                    staleness.append(applied - arrival.version)
                    self._flights.land(arrival.ticket)
                    self._free.append(arrival.slot)
                else:  # a late write of a lost worker lies in its slot
                    self._schedule([arrival.ticket], [arrival.slot])
                if self._wants_stop():
                    goal = (
                        max(start + 1, -(-self._flights.applied // self._replicas)) * self._replicas
                    )
        self._step = goal // self._replicas
        rows = np.stack(tails).reshape(self._step - start, self._replicas, -1)
        seconds = (time.monotonic() - began) / len(rows)
        steps = rows.mean(1) * tail_scale(self._replicas)
        table = rates_of(self._core, start, self._step)
        return block_metrics(self._core, self._step, steps, table, seconds) | {
            "stop_requested": self._wants_stop(),
            "staleness_mean": float(np.mean(staleness)),
            "staleness_max": max(staleness),
        }

    def _start_gradients(self) -> None:
        while len(self._free) >= self._lanes and self._flights.may_start(self._lanes):
            slots = [self._free.pop() for _ in range(self._lanes)]
            tickets = [self._ticket + lane for lane in range(self._lanes)]
            self._ticket += self._lanes
            for ticket in tickets:
                self._flights.start(ticket)
            self._schedule(tickets, slots)

    def _schedule(self, tickets: list[int], slots: list[int]) -> None:
        value = self._coordinator.schedule(
            self._gradients, args=(tf.constant([tickets, slots], tf.int64),)
        )

        def wait() -> None:
            for ticket, slot, row in zip(tickets, slots, value.fetch(), strict=True):
                self._arrivals.put(Arrival(ticket, slot, row[:-1], int(row[-1])))

        threading.Thread(
            target=wait, daemon=True
        ).start()  # the coordinator tells nobody when something is done

    def _next_arrival(self) -> Arrival:
        while True:
            try:
                return self._arrivals.get(timeout=1.0)
            except queue.Empty:
                self._coordinator.done()  # raises what no other worker can put right

    def _rate(self, step: int) -> float:
        e, plan = self._core.experiment, self._core.plan
        return learning_rate(
            e.schedule, step, plan.steps_per_epoch, plan.total_steps, e.global_batch_size
        )

    def _request(self, arrival: Arrival) -> tuple[tf.Tensor, tf.Tensor]:
        optimizer, applied = self._core.experiment.optimizer, self._flights.applied
        corrections = [1 - beta ** (applied + 1) for beta in (optimizer.momentum, optimizer.beta_2)]
        rates = [self._rate(applied // self._replicas) / self._replicas, *corrections]
        return tf.constant([arrival.ticket, arrival.slot], tf.int64), tf.constant(rates, tf.float32)

    def _compute_gradients(self, request: tf.Tensor) -> tf.Tensor:
        """On a worker: the gradients of some tickets into their slots; of each the tail, and how old its weights are."""
        tickets, slots = (tf.unstack(row) for row in tf.unstack(request, num=2))
        version, (params, stats) = self._read("params", "stats")
        places = [(ticket // self._replicas, ticket % self._replicas) for ticket in tickets]
        limit, tails = self._core.experiment.optimizer.clip_norm, []
        for vector, ticket, slot in zip(
            self._vectors_of(params, stats, places), tickets, slots, strict=True
        ):
            gradient, new_stats, tail = self._parts_of(vector)
            gradient = gradient * self._clip(gradient, limit) if limit else gradient
            for server in self._servers:
                server.put(slot, ticket, gradient, new_stats, stats[server.slices["stats"]])
            tails.append(
                tf.concat([tf.cast(tail, tf.float64), tf.cast(version, tf.float64)[None]], 0)
            )
        return tf.stack(tails)

    def _apply_gradient(self, request: tf.Tensor, rates: tf.Tensor) -> tf.Tensor:
        """The chief's, on all parameter servers: the update by one gradient, if it lies in its slot. Answers whether it did."""
        ticket, slot = request[0], request[1]
        rows, fresh = [], []
        for server in self._servers:
            with tf.device(server.device):
                rows.append(tf.gather(server.slots, slot))
                fresh.append(stamps(rows[-1]) == ticket)
        ready = tf.reduce_all(tf.stack(fresh))
        for server, row in zip(self._servers, rows, strict=True):
            with tf.device(server.device):
                gradient, new, old = server.split(row[:-STAMP])
                stats = self._move(tf.identity(server.vectors["stats"]), old, new)
                server.assign({**server.update(gradient, rates), "stats": stats}, ready)
        return ready

    def _moved_stats(self, current: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """By a replica's part of its change. In this order, one replica that is never stale gets its new ones exactly."""
        return (current - old / self._replicas) + new / self._replicas
