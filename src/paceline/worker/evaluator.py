"""The evaluator of a cluster: it watches the run folder and evaluates each checkpoint once, beside the training, with the chief's numbers.

It takes no part in the training and never writes what the chief writes: its own are evaluations.jsonl and the events of `evaluator`.
A checkpoint may be pruned while it is read: then the next one counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.config.experiment import differences
from paceline.config.job import Job
from paceline.core.state import State
from paceline.data.remote import bring_data
from paceline.errors import UserError
from paceline.messages import Result, Send, Warn, Working
from paceline.run_folder.checkpoint import Checkpoints
from paceline.run_folder.folder import RunFolder, watched_run
from paceline.run_folder.tensorboard import TensorBoard
from paceline.worker import actions, build, devices
from paceline.worker.chief import start_message

if TYPE_CHECKING:
    from paceline.core.replica import Core
    from paceline.worker.loop import Engine

POLL_S = 1.0
LOOK_EVERY_S = 10.0


class _Stopped(Exception):
    """Somebody wants the evaluator to end; there is nothing to save."""


class _Patience:
    """Every wait ends: with what is waited for, with a SIGTERM, or after the job's start-timeout without a sign of the training."""

    def __init__(self, job: Job, send: Send, stop: threading.Event) -> None:
        self._limit, self.send, self._stop = job.place.start_timeout, send, stop
        self._looked = self._since = time.monotonic()
        self._sign: Any = None

    def wait(self, what: str, sign: Callable[[], Any] = lambda: None) -> None:
        """A moment; `what` is still missing. What `sign` answers changes while somebody trains."""
        self.go_on()
        now = time.monotonic()
        if now - self._looked > min(LOOK_EVERY_S, self._limit / 3):
            self._looked, before, self._sign = now, self._sign, sign()
            if self._sign != before:
                self._since = now
            else:
                self.send(Warn(f"the evaluator waits for {what}"))
        if now - self._since > self._limit:
            raise UserError(
                f"no sign of {what} for {self._limit:.0f} s (--start-timeout); start its chief, then the evaluator again"
            )
        self._stop.wait(POLL_S)

    def go_on(self) -> bool:
        """Asked by the engine between two batches, too: a sign to the parent, and the place where a SIGTERM ends an evaluation."""
        self.send(Working())
        if self._stop.is_set():
            raise _Stopped
        return False


def watch(job: Job, send: Send, stop: threading.Event) -> bool:
    """Evaluate until the run is finished and its last checkpoint evaluated; True where a SIGTERM came first."""
    run, patience = watched_run(job.run.run_dir), _Patience(job, send, stop)
    try:
        bring_data(job.experiment.data.dir, send)
        run.refresh()
        while not run.exists():
            patience.wait(f"a run in {run.where}")
            run.refresh()
        _check(differences(run.experiment().to_json(), job.experiment.to_json()), run, "experiment")
        devices.import_tensorflow(job)
        from paceline.engines.collective import open_engine

        core, engine = open_engine(job, patience.go_on)
        _check(differences(run.data_facts(), build.facts(core)), run, "data")
        _evaluate_all(job, run, core, engine, patience)
    except _Stopped:
        return True
    return False


def _check(different: list[str], run: RunFolder, what: str) -> None:
    if different:
        raise UserError(
            f"the evaluator's {what} is not that of {run.where}: {', '.join(different[:4])}; give it the chief's own settings"
        )


def _evaluate_all(
    job: Job, run: RunFolder, core: Core, engine: Engine, patience: _Patience
) -> None:
    checkpoints = Checkpoints(
        run.checkpoints, core.layout, experiment_digest=job.experiment.digest()
    )
    done = {record["step"]: record for record in run.evaluations.read()}
    board = TensorBoard(run.evaluator_events, max(done, default=0))
    line = f"evaluator: {build.derived(job, core)}"
    patience.send(start_message(core, max(done, default=0), line, run.where))
    unreadable: dict[int, UserError] = {}
    try:
        while not _finished(run, core.plan.total_steps, done, unreadable):
            run.refresh()
            for step in [step for step in checkpoints.steps() if step not in {*done, *unreadable}]:
                if state := _load(checkpoints, step, unreadable, patience.send):
                    done[step] = _evaluate(state, core, engine, run, board, patience.send)
            patience.wait(
                f"a checkpoint in {run.where}",
                lambda: (checkpoints.steps(), len(run.metrics.read())),
            )
    finally:
        board.close()
    last = done[core.plan.total_steps] | {
        "finished": True,
        "images_per_second": None,
        "run_dir": run.where,
    }
    names = (
        "step",
        "finished",
        "test_accuracy",
        "test_loss",
        "images_per_second",
        "state_sha256",
        "run_dir",
    )
    patience.send(Result({name: last[name] for name in names}))


def _finished(
    run: RunFolder, last_step: int, done: dict[int, Any], unreadable: dict[int, UserError]
) -> bool:
    """Whether the run is finished and its last checkpoint evaluated."""
    if last_step in unreadable:
        raise unreadable[last_step]
    return last_step in done and bool((run.read_result() or {}).get("finished"))


def _load(
    checkpoints: Checkpoints, step: int, unreadable: dict[int, UserError], send: Send
) -> State | None:
    """None where the file was pruned meanwhile; one that is there and cannot be read is told of."""
    try:
        return checkpoints.load(step)
    except UserError as error:
        if step in checkpoints.steps():
            unreadable[step] = error
            send(Warn(f"not evaluated: {error}"))
        return None


def _evaluate(
    state: State, core: Core, engine: Engine, run: RunFolder, board: TensorBoard, send: Send
) -> dict[str, Any]:
    engine.load(state)
    began = time.monotonic()
    metrics = {"epoch": state.step / core.plan.steps_per_epoch, **engine.evaluate(final=True)}
    record = {
        "step": state.step,
        **actions.scalars(metrics),
        "seconds": time.monotonic() - began,
        "state_sha256": state.sha256(),
    }
    run.evaluations.append(record)
    board(state.step, metrics)
    run.publish_evaluations()
    actions.SendMetrics(send)(state.step, metrics)
    return record
