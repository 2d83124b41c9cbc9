"""The actors of the object-store engine: processes of a Ray cluster that hold the state.

This module says what may be called and when; what is computed is in `compute`. It does not import
TensorFlow, because an actor first makes the settings that TensorFlow reads at its import.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import ray

from paceline.engines import devices
from paceline.errors import PassingFault, UserError, first_line
from paceline.experiment.fields import Json
from paceline.job import Cluster, Job
from paceline.maths.sums import Span, add_subtrees, divided_tree, mean_factor

if TYPE_CHECKING:
    from paceline.maths.update import Vectors

Arrays = dict[str, np.ndarray]


class Status(NamedTuple):
    """What an actor answers at any time, even while it computes."""

    host: str
    step: int
    work_s: float
    """Processor time so far: it grows while the actor computes."""


class Actor:
    """A process somewhere in the cluster that holds the whole state and computes some replicas.

    Calls of an earlier `attempt` than the last `load` are refused: they come from before a failure.
    Methods that must answer while the actor computes are in the concurrency group `control`.
    """

    def __init__(self, job: Job, folder: str) -> None:
        self._job = job
        self._attempt = 0
        # one tuple, because it is read while the next one is made
        self._state: tuple[int, Vectors] = (-1, {})
        # relative paths mean the same as for the driver, if this node has its folder
        with contextlib.suppress(OSError):
            os.chdir(folder)

    def build(self) -> Json:
        """Build data, model and functions; return the fingerprint of what decides the bits."""
        devices.import_tensorflow(self._job)
        from paceline.build import build_core
        from paceline.engines_more.object_store.compute import Computer
        from paceline.fingerprint import fingerprint

        with _explained():
            devices.configure(self._job, check_threads=False)
            core = build_core(self._job)
        share = devices.own_share(self._job)
        self._computer = Computer(core, share.side_by_side, ahead=int(bool(share.gpus)))
        return fingerprint(self._job, core)

    @ray.method(concurrency_group="control")
    def status(self) -> Status:
        return Status(socket.gethostname(), self._state[0], time.process_time())

    @ray.method(concurrency_group="control", num_returns=2)
    def state(self) -> tuple[int, tuple[int, Arrays]]:
        """Return the step, and the step with the vectors. The driver may need the first alone."""
        step, vectors = self._state
        return step, (step, {name: np.asarray(vector) for name, vector in vectors.items()})

    def load(self, attempt: int, state: tuple[int, Arrays], index: int, workers: int) -> None:
        """Continue from this state as worker `index` of `workers`."""
        self._attempt = attempt
        self._shards = num_shards(workers)
        self._spans = divided_tree(self._job.experiment.replicas, workers)[index]
        self._state = state[0], self._computer.load(state[1])

    def advance(
        self, attempt: int, before: Span | None, now: Span, *pieces: np.ndarray
    ) -> list[np.ndarray]:
        """Finish the round `before`, then compute the round of steps `now` = [first, last).

        Returns the shards of this worker's sums, and their tails. Both have a row for each
        subtree of its share.
        """
        self.finish(attempt, before, *pieces)
        step, vectors = self._state
        if step != now[0]:
            raise RuntimeError(f"the state is of step {step}, the round begins at {now[0]}")
        with _explained():
            sums, tails = self._computer.compute(vectors, now, self._spans)
        return [*np.array_split(sums, self._shards, axis=1), tails]

    def reduce(self, attempt: int, *pieces: np.ndarray) -> np.ndarray:
        """Return the mean of a shard over all replicas."""
        self._check(attempt)
        return mean(pieces, self._job.experiment.replicas)

    def finish(self, attempt: int, before: Span | None, *pieces: np.ndarray) -> None:
        """Take the state after the round `before`.

        The pieces are the sums of all workers, or the shards of their mean.
        """
        self._check(attempt)
        if before is None:
            return
        whole = self.reduce(attempt, *pieces) if self._shards == 1 else np.concatenate(pieces)
        self._state = before[1], self._computer.finish(self._state[1], whole, before)

    def evaluate(self, attempt: int, split: str, start: int, stop: int) -> np.ndarray:
        """Return the rows of the evaluation batches [start, stop)."""
        self._check(attempt)
        with _explained():
            return self._computer.evaluate(self._state[1], split, start, stop)

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


def num_shards(workers: int) -> int:
    """Return into how many shards each sum is cut, to be added up by one worker each.

    Two workers read each other's whole sums: that takes one hop and moves no more bytes.
    """
    return 1 if workers <= 2 else workers


def mean(sums: Sequence[np.ndarray], replicas: int) -> np.ndarray:
    """Return the mean over all replicas from the sums of the workers, a row for each subtree.

    NumPy's float32 additions give the same bits as TensorFlow's.
    """
    spans = [span for spans in divided_tree(replicas, len(sums)) for span in spans]
    rows = (row for rows in sums for row in rows)
    total: np.ndarray = add_subtrees((0, replicas), dict(zip(spans, rows, strict=True)), np.add)
    return np.asarray(total * mean_factor(replicas))
