"""The run of a worker: followers only train, the chief also reads and writes the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from paceline.engines import devices
from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json
from paceline.experiment.schedule import unfinished_warmup
from paceline.job import Job
from paceline.kernels.library import why_slow
from paceline.loop import Action, Outcome
from paceline.maths.state import State
from paceline.messages import Block, Done, Send, Warn
from paceline.run_folder.actions import (
    SaveCheckpoint,
    Speed,
    send_metrics,
    stop_on_bad_loss,
    write_evaluation,
    write_metrics,
)
from paceline.run_folder.checkpoints import Checkpoints, identity_of
from paceline.run_folder.events import TensorBoard
from paceline.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from paceline.engines.base import Engine
    from paceline.maths.replica import Core
    from paceline.run_folder.early_stopping import StopEarly

OPTIONAL_ACTIONS = {
    "chain": "paceline.extras.proof.chain:load_chain",
    "track": "paceline.extras.tracking.trackers:load_trackers",
    "actions": "paceline.run_folder.user_actions:load_user_actions",
    "histograms": "paceline.extras.tensorboard_more:load_histograms",
    "profile": "paceline.extras.tensorboard_more:load_profile",
}
"""Setting of `Run` -> the function that loads its actions; it is imported only if it is set.

It takes the job, so that a mistake is found before anything is written, and returns a function
`(chief) -> actions`. At the end, `facts()` of an action are added to the result, then
`finish(result)` and `close()` are called.
"""


def open_run(job: Job, send: Send, at_end: ExitStack) -> FollowerRun | None:
    """Return the run of this worker; None if nothing is left to do, after reporting the result.

    The chief keeps other commands out of the run folder until `at_end`.
    """
    if not job.cluster.is_chief:
        return FollowerRun(job, send)
    run = ChiefRun(job, send)
    at_end.callback(run.folder.unlock)
    run.folder.lock(send=send)
    # a platform restarts all tasks, and the others wait for their chief
    awaited = job.place.kind.platform_restarts and len(job.cluster.everyone) > 1
    result = None if awaited else find_finished(run.folder, job.experiment, send)
    if result is None:
        return run
    if job.run.track:
        late = import_module("paceline.extras.tracking.trackers")
        late.send_late(job.run.track, run.folder, send)
    run.folder.unlock()  # the parent may end this process as soon as it gets the message
    send(result)
    return None


def find_finished(run: RunFolder, experiment: Experiment, send: Send) -> Done | None:
    """Return the result of a run that has nothing left to do. A damaged one is ignored: training
    writes it again from its last checkpoint."""
    try:
        result = run.read_result() if run.exists() else None
    except PassingFault:
        raise
    except UserError as error:
        send(Warn(f"{error}: this happens now"))
        return None
    if not result or not result["finished"] or run.experiment().changes_to(experiment):
        return None
    return Done(result | {"run_dir": run.where, "already": True})


class FollowerRun:
    """The base of `ChiefRun`. The engine brings a follower the chief's state and decisions."""

    core: Core
    engine: Engine

    def __init__(self, job: Job, send: Send) -> None:
        self.job = job
        self.send = send
        self.folder = RunFolder(job.run.run_dir)
        self.speed = Speed(job.experiment.global_batch_size)

    @contextmanager
    def begin(self, core: Core, engine: Engine) -> Iterator[None]:
        """Nothing is opened."""
        self.core, self.engine = core, engine
        yield

    def first_state(self) -> State:
        """Return a state that `Engine.load` replaces with the chief's."""
        return self.core.initial_state()

    def actions(self, state: State) -> list[Action]:
        """Report that training begins; return what a follower does after each block."""
        from paceline.build import start_message

        name = f"worker {self.job.cluster.index}: "
        self.send(start_message(self.job, self.core, state.step, name))
        return [stop_on_bad_loss, self.speed, lambda block, _: self.send(Block(block.step))]

    def ends_early(self, state: State) -> StopEarly | None:
        """Return what decides whether training ends early; None if it never does."""
        settings = self.job.experiment.early_stopping
        if not settings.patience:
            return None
        from paceline.run_folder.early_stopping import StopEarly, read_values

        step, is_chief = state.reported_step, self.job.cluster.is_chief
        values = read_values(self.folder, settings, self.core.plan, step) if is_chief else []
        return StopEarly(settings, self.engine.agree, values)

    def finish(self, state: State, outcome: Outcome) -> None:
        """Report the result, which is the chief's."""
        self.send(Done(self.result(state, outcome) | {"run_dir": self.folder.where}))

    def result(self, state: State, outcome: Outcome) -> Json:
        """Return the fields of result.json."""
        early = {"ended_early": True} if outcome.ended_early else {}
        test = outcome.evaluation.splits.get("test") if outcome.evaluation else None
        return {
            "step": state.step,
            "finished": state.step == self.core.plan.total_steps or bool(early),
            "test_accuracy": test.accuracy if test else None,
            "test_loss": test.loss if test else None,
            "images_per_second": self.speed.images_per_second(),
            "state_sha256": state.sha256(),
            "bits": self.core.template.bits,
            **({"left_out": left_out} if (left_out := self.core.source.left_out[:100]) else {}),
        } | early


class ChiefRun(FollowerRun):
    """Reads and writes the run folder for all workers."""

    board: TensorBoard
    checkpoints: Checkpoints
    first_step: int
    """The step after which nothing is reported yet."""

    def __init__(self, job: Job, send: Send) -> None:
        super().__init__(job, send)
        self._actions: list[Action] = []
        self._at_end = ExitStack()

    @contextmanager
    def begin(self, core: Core, engine: Engine) -> Iterator[None]:
        """Make the folder that of this job, or check that it is; report an error in result.json."""
        self.core, self.engine = core, engine
        self._optional: dict[str, Callable[[ChiefRun], list[Action]]] = {}
        for name, loader in OPTIONAL_ACTIONS.items():
            if getattr(self.job.run, name):
                module, _, function = loader.partition(":")
                self._optional[name] = getattr(import_module(module), function)(self.job)
        self._open_folder()
        with self._at_end:
            try:
                yield
            except Exception as error:
                if self._actions:  # training began
                    with suppress(Exception):  # if even this fails, the error itself says why
                        step = engine.state().step
                        self._write_result({"step": step, "finished": False, "error": str(error)})
                raise

    def _open_folder(self) -> None:
        from paceline.fingerprint import code_digests, data_facts

        job, core, send, folder = self.job, self.core, self.send, self.folder
        if reason := why_slow(job.experiment, core.template.kernels):
            send(Warn(reason))
        facts, code = data_facts(job, core), code_digests(job)
        for line in folder.open(job.experiment, facts, core.template.kernels, code):
            send(Warn(f"a library changed since this run began, bits may differ: {line}"))
        if code or job.run.actions:
            from paceline.run_folder.code_copies import keep_code

            keep_code(job)
        self.checkpoints = Checkpoints(
            folder.checkpoints,
            core.layout,
            keep=job.run.keep,
            identity=identity_of(folder),
            warn=lambda text: send(Warn(text.replace(str(folder.path), folder.where))),
            guard=folder.check_lease,
        )

    def first_state(self) -> State:
        """Return the newest checkpoint, or the state from which the experiment starts."""
        if state := self.checkpoints.latest():
            # of the tails, keep only those that metrics.jsonl lacks
            steps = (record["step"] for record in self.folder.metrics.read())
            written = max((step for step in steps if step < state.step), default=0)
            lacking = min(len(state.tails), state.step - written)
            return replace(state, tails=state.tails[len(state.tails) - lacking :])
        if self.checkpoints.steps():
            raise UserError(
                f"every checkpoint of {self.folder.where} is damaged; remove them to start over, "
                "or use another --run-dir"
            )
        state, model = self.core.initial_state(), self.core.experiment.model
        if model.whitening or model.init_from:
            from paceline.run_folder.given_weights import with_given_weights

            state = with_given_weights(state, self.core, self.send)
        return state

    def actions(self, state: State) -> list[Action]:
        """Report that training begins; return what the chief does after each block, in order."""
        from paceline.build import start_message

        job, core, folder, send = self.job, self.core, self.folder, self.send
        self.first_step = state.reported_step
        if damaged := folder.metrics.truncate(self.first_step):
            send(Warn(f"{damaged} damaged lines of {folder.metrics.path} were left out"))
        warmup = unfinished_warmup(job.experiment, core.plan)
        for warning in (*devices.warnings(job), *[warmup] * bool(warmup)):
            send(Warn(warning))
        send(start_message(job, core, state.step, lease=folder.epoch))
        folder.append_start(state.step, job.place.on, job.cluster.num_workers, job.engine)
        self.board = TensorBoard(folder.events, self.first_step, folder.epoch)
        self.board.settings(job.experiment)
        self._save = SaveCheckpoint(self)
        optional = {name: build(self) for name, build in self._optional.items()}
        self._actions = [
            stop_on_bad_loss,
            self.speed,
            *optional.pop("chain", []),  # never behind metrics.jsonl, which a resume believes
            partial(write_metrics, folder),
            self.board,
            partial(send_metrics, send),
            self._save,
            partial(write_evaluation, folder, core),
            *(action for actions in optional.values() for action in actions),
        ]
        for action in self._actions:
            if close := getattr(action, "close", None):
                self._at_end.callback(close)
        return self._actions

    def finish(self, state: State, outcome: Outcome) -> None:
        """Save the last state; write and report the result."""
        if state.step > self.first_step:
            self._save.save(state.step, outcome.evaluation)
        self._at_end.close()
        result = self.result(state, outcome)
        if result["test_accuracy"] is None:  # training was stopped between two evaluations
            known = [each for each in self.folder.metrics.read() if "test_accuracy" in each]
            for last in known[-1:]:
                result |= {name: last[name] for name in ("test_accuracy", "test_loss")}
                result["evaluated_step"] = last["step"]
        self._write_result(result)
        self.send(Done(result | {"run_dir": self.folder.where}))

    def _write_result(self, result: Json) -> None:
        for action in self._actions:
            if facts := getattr(action, "facts", None):
                result |= facts()
        self.folder.write_result(result)
        for action in self._actions:
            if finish := getattr(action, "finish", None):
                finish(result)
                self.folder.publish()  # what the action wrote about it
