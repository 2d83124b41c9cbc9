"""The evaluator of a cluster: it evaluates each checkpoint of a run once, beside the training.

Its numbers are the chief's. It takes no part in the training and never writes what the chief
writes: it writes evaluations.jsonl and the events of `evaluator`. If a checkpoint is removed while
it is read, the evaluator continues with the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from paceline.engines import devices
from paceline.errors import PassingFault, UserError
from paceline.experiment.dataclass_json import differences
from paceline.experiment.plan import Plan
from paceline.job import Job
from paceline.maths.state import State
from paceline.messages import Block, Evaluation, Result, Send, Warn, Working
from paceline.runs.checkpoints import Checkpoints
from paceline.runs.events import TensorBoard
from paceline.runs.finding import watched_run
from paceline.runs.folder import RunFolder
from paceline.storage.data_cache import bring_data
from paceline.worker_training import Training

POLL_S = 1.0
LOOK_EVERY_S = 10.0


class _Stopped(Exception):
    """Someone wants the evaluator to end; there is nothing to save."""


class _Waiter:
    """Waits for the training, at most for the start timeout without a sign of it."""

    def __init__(self, job: Job, send: Send, stop: threading.Event) -> None:
        self._limit = job.place.start_timeout
        self._send = send
        self._stop = stop
        self._looked = self._since = time.monotonic()
        self._sign: Any = None

    def wait(self, what: str, sign: Callable[[], Any] = lambda: None) -> None:
        """Wait a moment for `what`. What `sign` returns changes while someone trains."""
        self.check_stop()
        now = time.monotonic()
        if now - self._looked > min(LOOK_EVERY_S, self._limit / 3):
            self._looked = now
            seen = sign()
            if seen != self._sign:
                self._since = now
                self._sign = seen
            else:
                self._send(Warn(f"the evaluator waits for {what}"))
        if now - self._since > self._limit:
            raise UserError(
                f"no sign of {what} for {self._limit:.0f} s (--start-timeout); "
                "start its chief, then the evaluator again"
            )
        self._stop.wait(POLL_S)

    def check_stop(self) -> bool:
        """End the evaluator after a SIGTERM. The engine calls it between two batches, too."""
        self._send(Working())
        if self._stop.is_set():
            raise _Stopped
        return False


def watch(job: Job, send: Send, stop: threading.Event) -> bool:
    """Evaluate every checkpoint until the run is finished; return whether a SIGTERM came first."""
    run, waiter = watched_run(job.run.run_dir), _Waiter(job, send, stop)
    try:
        bring_data(job.experiment.data.dir, send)
        _refresh(run, send)
        while not run.exists():
            waiter.wait(f"a run in {run.where}")
            _refresh(run, send)
        _check(differences(run.experiment().to_json(), job.experiment.to_json()), run, "experiment")
        devices.import_tensorflow(job)
        from paceline.build import build_core
        from paceline.engines.collective import connect
        from paceline.fingerprint import data_facts

        connection = connect(job, waiter.check_stop)
        core = build_core(job)
        engine = connection.open(core)
        old, new = run.data_facts(), data_facts(job, core)
        known = {name: new[name] for name in new if name in old}  # older folders have fewer facts
        _check(differences(old, known), run, "data")
        _evaluate_all(Training(job, core, engine, send, stop), run, waiter)
    except _Stopped:
        return True
    return False


def _refresh(run: RunFolder, send: Send) -> None:
    """Fetch what is new. If storage is away, the evaluator waits for it as for the chief."""
    _tried(run.refresh, send)


def _tried(action: Callable[[], None], send: Send) -> bool:
    """Return whether an action was done. If storage is away for now, it is not."""
    try:
        action()
    except PassingFault as error:
        send(Warn(f"{error}; the evaluator tries again"))
        return False
    return True


def _check(different: list[str], run: RunFolder, what: str) -> None:
    if different:
        raise UserError(
            f"the evaluator's {what} is not that of {run.where}: {', '.join(different[:4])}; "
            "give it the chief's own settings"
        )


def _evaluate_all(training: Training, run: RunFolder, waiter: _Waiter) -> None:
    core, digest = training.core, training.job.experiment.digest()
    checkpoints = Checkpoints(run.checkpoints, core.layout, experiment_digest=digest)
    done = {record["step"]: record for record in run.evaluations.read()}
    first_step = max(done, default=0)
    training.send(training.start_message(first_step, "evaluator: ", run.where))
    unreadable: dict[int, UserError] = {}
    behind = False
    with closing(TensorBoard(run.evaluator_events, first_step)) as board:
        while not (last := _last(run, core.plan, done, unreadable, training.send)) or behind:
            _refresh(run, training.send)
            for step in [step for step in checkpoints.steps() if step not in {*done, *unreadable}]:
                if state := _load(checkpoints, step, unreadable, training.send):
                    done[step] = _evaluate(training, state, run, board)
                    behind = not _tried(run.publish_evaluations, training.send)
            behind = behind and not _tried(run.publish_evaluations, training.send)
            waiter.wait(
                f"a checkpoint in {run.where}",
                lambda: (checkpoints.steps(), len(run.metrics.read())),
            )
    training.send(
        Result(
            {
                "step": last["step"],
                "finished": True,
                "test_accuracy": last["test_accuracy"],
                "test_loss": last["test_loss"],
                "images_per_second": None,
                "state_sha256": last["state_sha256"],
                "run_dir": run.where,
            }
        )
    )


def _last(
    run: RunFolder, plan: Plan, done: dict[int, Any], unreadable: dict[int, UserError], send: Send
) -> dict[str, Any] | None:
    """Return the evaluation of the last checkpoint, once the run is finished. It may end early."""
    try:
        result = run.read_result() or {}
    except PassingFault as error:
        send(Warn(f"{error}; the evaluator tries again"))
        return None
    last_step = result["step"] if result.get("finished") else plan.total_steps
    if last_step in unreadable:
        raise unreadable[last_step]
    return done.get(last_step) if result.get("finished") else None


def _load(
    checkpoints: Checkpoints, step: int, unreadable: dict[int, UserError], send: Send
) -> State | None:
    """Return a checkpoint, or None if it was removed or is damaged; report the latter.

    If it only cannot be read now, it is tried again later.
    """
    try:
        return checkpoints.load(step)
    except PassingFault as error:
        send(Warn(f"not evaluated yet: {error}"))
        return None
    except UserError as error:
        if step in checkpoints.steps():
            unreadable[step] = error
            send(Warn(f"not evaluated: {error}"))
        return None


def _evaluate(
    training: Training, state: State, run: RunFolder, board: TensorBoard
) -> dict[str, Any]:
    training.engine.load(state)
    began = time.monotonic()
    epoch = state.step / training.core.plan.steps_per_epoch
    evaluation = training.engine.evaluate(final=True)
    record = {
        "step": state.step,
        "epoch": epoch,
        **evaluation.scalars(),
        "seconds": time.monotonic() - began,
        "state_sha256": state.sha256(),
    }
    run.evaluations.append(record)
    board.evaluation(state.step, evaluation)
    training.send(Block(state.step, {"epoch": epoch}, evaluation_follows=True))
    training.send(Evaluation(state.step, evaluation.scalars()))
    return record
