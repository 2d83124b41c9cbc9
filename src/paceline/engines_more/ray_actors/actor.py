"""A worker of the Ray engine: an actor that trains as a worker of the collective engine does."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import ray

from paceline.engines import devices
from paceline.errors import PassingFault, UserError, first_line
from paceline.experiment.fields import Json
from paceline.job import Cluster, Job
from paceline.maths.metrics import BlockResult, EvalResult
from paceline.maths.state import State
from paceline.messages import TOKEN

if TYPE_CHECKING:
    from paceline.engines.collective import CollectiveEngine
    from paceline.engines.peers import Peers


class Status(NamedTuple):
    """What an actor answers at any time, even while it computes."""

    host: str
    work_s: float
    """Processor time so far: it grows while the actor computes."""


class Actor:
    """A process somewhere in the cluster that holds the whole state and computes some replicas.

    Calls of an earlier `attempt` than the last `begin` are refused: they come from before a
    failure. Methods that must answer while the actor computes are in the concurrency group
    `control`.
    """

    _engine: CollectiveEngine | None = None
    _peers: Peers | None = None

    def __init__(self, job: Job, folder: str) -> None:
        self._job = job
        self._attempt = 0
        self._wants_stop = False
        # relative paths mean the same as for the driver, if this node has its folder
        with contextlib.suppress(OSError):
            os.chdir(folder)

    def build(self) -> Json:
        """Build data, model and functions; return the fingerprint of what decides the bits."""
        devices.import_tensorflow(self._job)
        from paceline.build import build_core
        from paceline.fingerprint import fingerprint

        with _explained():
            self._share = devices.configure(self._job, check_threads=False)
            self._core = build_core(self._job)
        return fingerprint(self._job, self._core)

    @ray.method(concurrency_group="control")
    def status(self) -> Status:
        return Status(socket.gethostname(), time.process_time())

    @ray.method(concurrency_group="control")
    def begin(self, attempt: int) -> str:
        """End the exchanges of earlier attempts; return an address for those of this one."""
        self._attempt = attempt
        if self._peers:
            self._peers.abort()
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    @ray.method(concurrency_group="control", num_returns=2)
    def held(self) -> tuple[int, State | None]:
        """Return the newest state, and before it its step. The driver may need the step alone."""
        state = self._engine.held() if self._engine else None
        return (state.step if state else -1), state

    def load(self, attempt: int, state: State, cluster: Cluster, token: str) -> None:
        """Meet the others, and continue from this state."""
        import tensorflow as tf

        from paceline.engines.collective import CollectiveEngine
        from paceline.engines.hosts import meet

        self._check(attempt)
        if self._peers:
            self._peers.close()
        self._peers = None
        with _explained():
            if len(cluster.addresses) > 1:
                os.environ[TOKEN] = token
                self._peers = meet(cluster, lambda: self._attempt != attempt)
            strategy = tf.distribute.OneDeviceStrategy("/gpu:0" if self._share.gpus else "/cpu:0")
            self._engine = CollectiveEngine(
                self._core,
                strategy,
                self._share.side_by_side,
                lambda: self._wants_stop,
                self._peers,
            )
            self._engine.load(state)

    def state(self, attempt: int) -> State:
        """Return the state between two blocks."""
        return self._ready(attempt).state()

    def advance(self, attempt: int, start: int, stop: int, wants_stop: bool) -> BlockResult:
        """Train the steps [start, stop), or fewer if the driver wants to stop."""
        engine, self._wants_stop = self._ready(attempt), wants_stop
        with _explained():
            return engine.advance(start, stop)

    def evaluate(self, attempt: int, final: bool) -> EvalResult:
        """Evaluate the state together with the others."""
        with _explained():
            return self._ready(attempt).evaluate(final)

    def _ready(self, attempt: int) -> CollectiveEngine:
        self._check(attempt)
        assert self._engine
        return self._engine

    def _check(self, attempt: int) -> None:
        if attempt != self._attempt:
            raise RuntimeError(f"a call of attempt {attempt}, but this is attempt {self._attempt}")


class Evaluator:
    """Evaluates each checkpoint beside the training, on the CPU (`--ray.evaluator`)."""

    def __init__(self, job: Job, folder: str) -> None:
        os.chdir(folder)
        place = replace(job.place, devices="cpu")
        self._job = replace(job, place=place, cluster=Cluster(role="evaluator"))

    def run(self) -> None:
        """Evaluate checkpoints until the run is finished."""
        watch = import_module("paceline.extras.evaluator").watch
        watch(self._job, lambda message: None, threading.Event())


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn an error into one that can be pickled and names the host, with any advice."""
    try:
        yield
    except Exception as error:
        from paceline.formats.reading import explain

        advice = error if isinstance(error, UserError) else explain(error)
        known = advice or RuntimeError(f"{type(error).__name__}: {first_line(error)}")
        kinds = (PassingFault, UserError, RuntimeError)
        kind = next(kind for kind in kinds if isinstance(known, kind))
        raise kind(f"on {socket.gethostname()}: {known}") from None
