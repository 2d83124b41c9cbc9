"""The evaluator of a cluster: evaluates each checkpoint of a run once, while others train.

Its numbers are the chief's. It writes only evaluations.jsonl and the events of `evaluator`. If a
checkpoint is removed while it is read, the evaluator continues with the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from paceline.engines import devices
from paceline.errors import PassingFault, UserError
from paceline.experiment.fields import Json, diff
from paceline.job import Job
from paceline.maths.state import State
from paceline.messages import Block, Done, Evaluated, Send, Warn, Working
from paceline.run_folder.checkpoints import Checkpoints, identity_of
from paceline.run_folder.events import TensorBoard
from paceline.run_folder.finding import watched_run
from paceline.run_folder.folder import RunFolder
from paceline.storage.locations import bring_data

if TYPE_CHECKING:
    from paceline.engines.base import Engine
    from paceline.maths.replica import Core

POLL_S = 1.0


class _Stopped(Exception):
    """Ends the evaluator after a SIGTERM. There is nothing to save."""


def watch(job: Job, send: Send, stop: threading.Event) -> bool:
    """Evaluate every checkpoint until the run is finished; return whether a SIGTERM came first."""
    try:
        _Evaluator(job, send, stop).run()
    except _Stopped:
        return True
    return False


class _Evaluator:
    """Waits for the training, at most for the start timeout without a sign of it."""

    def __init__(self, job: Job, send: Send, stop: threading.Event) -> None:
        self._job, self._send, self._stop = job, send, stop
        self._folder = watched_run(job.run.run_dir)
        self._since = time.monotonic()
        self._sign: object = None
        self._unreadable: dict[int, UserError] = {}

    def run(self) -> None:
        """Wait for a run with the same experiment and data, and evaluate its checkpoints."""
        folder, job = self._folder, self._job
        bring_data(job.experiment.data.dir, self._send)
        if not self._refreshed().exists():
            self._send(Warn(f"the evaluator waits for a run in {folder.where}"))
        while not self._refreshed().exists():
            self._wait(f"a run in {folder.where}")
        self._compare("experiment", folder.experiment().changes_to(job.experiment))
        devices.import_tensorflow(job)
        from paceline.build import build_core, start_message
        from paceline.engines.collective import connect
        from paceline.fingerprint import data_facts

        open_engine = connect(job, self._check_stop)
        core = build_core(job)
        engine = open_engine(core)
        self._compare("data", diff(folder.data_facts(), data_facts(job, core)))
        done = {record["step"]: record for record in folder.evaluations.read()}
        first_step = max(done, default=0)
        self._send(start_message(job, core, first_step, "evaluator: "))
        with closing(TensorBoard(folder.evaluator_events, first_step)) as board:
            last = self._evaluate_all(core, engine, board, done)
        names = ("step", "test_accuracy", "test_loss", "state_sha256")
        more = {"finished": True, "images_per_second": None, "run_dir": folder.where}
        self._send(Done({name: last[name] for name in names} | more))

    def _evaluate_all(
        self, core: Core, engine: Engine, board: TensorBoard, done: dict[int, Json]
    ) -> Json:
        """Evaluate checkpoints until the run is finished; return the last evaluation."""
        folder = self._folder
        checkpoints = Checkpoints(folder.checkpoints, core.layout, identity=identity_of(folder))
        metrics, published = folder.metrics.path, True
        while not (last := self._last(done)) or not published:
            self._refreshed()
            for step in sorted(set(checkpoints.steps()) - done.keys() - self._unreadable.keys()):
                if state := self._load(checkpoints, step):
                    done[step] = self._evaluate(state, core, engine, board)
                    published = False
            if not published:
                with self._patience():
                    folder.publish_evaluations()
                    published = True
            size = metrics.stat().st_size if metrics.exists() else 0
            self._wait(f"a checkpoint in {folder.where}", (checkpoints.steps(), size))
        return last

    def _last(self, done: dict[int, Json]) -> Json | None:
        """Return the evaluation of the last step, once the run is finished. It may end early."""
        with self._patience():
            result = self._folder.read_result() or {}
            if result.get("finished"):
                if error := self._unreadable.get(result["step"]):
                    raise error
                return done.get(result["step"])
        return None

    def _load(self, checkpoints: Checkpoints, step: int) -> State | None:
        """Return a checkpoint; None if it was removed, is damaged, or cannot be read yet."""
        try:
            with self._patience():
                return checkpoints.load(step)
        except UserError as error:
            if step in checkpoints.steps():
                self._unreadable[step] = error
                self._send(Warn(f"not evaluated: {error}"))
        return None

    def _evaluate(self, state: State, core: Core, engine: Engine, board: TensorBoard) -> Json:
        engine.load(state)
        began = time.monotonic()
        epoch = state.step / core.plan.steps_per_epoch
        evaluation = engine.evaluate(final=True)
        record = {
            "step": state.step,
            "epoch": epoch,
            **evaluation.scalars(),
            "seconds": time.monotonic() - began,
            "state_sha256": state.sha256(),
        }
        self._folder.evaluations.append(record)
        board.scalars(state.step, evaluation.scalars())
        self._send(Block(state.step, {"epoch": epoch}, evaluation_follows=True))
        self._send(Evaluated(state.step, evaluation.scalars()))
        return record

    def _refreshed(self) -> RunFolder:
        with self._patience():
            self._folder.refresh()
        return self._folder

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Ignore that storage is unavailable: what was left out is done later."""
        try:
            yield
        except PassingFault as error:
            self._send(Warn(f"{error}; the evaluator tries again"))

    def _compare(self, what: str, different: list[str]) -> None:
        if different:
            raise UserError(
                f"the evaluator's {what} differs from {self._folder.where}: "
                f"{', '.join(different[:4])}; give it the chief's settings"
            )

    def _wait(self, what: str, sign: object = None) -> None:
        """Wait a moment for `what`. The value of `sign` changes while someone trains."""
        self._check_stop()
        now, limit = time.monotonic(), self._job.place.start_timeout
        if sign != self._sign:
            self._sign, self._since = sign, now
        if now - self._since > limit:
            raise UserError(
                f"no sign of {what} for {limit:.0f} s (--start-timeout); "
                "start its chief, then the evaluator again"
            )
        self._stop.wait(POLL_S)

    def _check_stop(self) -> bool:
        """Raise _Stopped after a SIGTERM. The engine calls it between two batches, too."""
        self._send(Working())
        if self._stop.is_set():
            raise _Stopped
        return False
