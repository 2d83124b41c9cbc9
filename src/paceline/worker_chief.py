"""The chief's part of a training: it alone reads and writes the run folder."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.experiment.user_code import load_function
from paceline.extras.tracking.in_worker import finish_trackers, open_tracker
from paceline.extras.tracking.table import load_client
from paceline.extras.tracking.tracker import Tracking
from paceline.kernels.choice import why_not_own
from paceline.loop import Action, Outcome
from paceline.maths.state import State
from paceline.messages import Result, Warn
from paceline.runs import thumbnails as images
from paceline.runs.actions import (
    SaveCheckpoint,
    SendMetrics,
    StopOnNonFiniteLoss,
    UserAction,
    WriteEvaluation,
    WriteMetrics,
)
from paceline.runs.checkpoints import Checkpoints
from paceline.runs.code_copies import keep_copies, specs_of
from paceline.runs.events import HistogramsAtSaves, Profile, TensorBoard
from paceline.runs.folder import RunFolder
from paceline.runs.stop_early import read_values
from paceline.worker_training import Speed, Training, first_unreported

if TYPE_CHECKING:
    from paceline.maths.replica import Core


def lead(training: Training, run: RunFolder) -> bool:
    """Train as the chief; return whether a request stopped it."""
    from paceline.build import locate

    job, engine = training.job, training.engine
    # first, so that a mistake in them is reported before anything begins
    actions_here = [(spec, locate(job, "actions", spec)) for spec in job.run.actions]
    user_actions = [UserAction(spec, load_function(place)) for spec, place in actions_here]
    clients = {name: load_client(name) for name in job.run.track}
    checkpoints = _open_run(training, run)
    loaded = engine.load(_first_state(training, checkpoints, run))
    first_step = first_unreported(loaded)
    if damaged := run.metrics.truncate(first_step):
        training.send(Warn(f"{damaged} damaged lines of {run.metrics.path} were left out"))
    validation = read_values(run, job.experiment.early_stopping, training.core.plan, first_step)
    start = training.start_message(loaded.step, run_dir=run.where)
    training.send(replace(start, lease=run.epoch))
    run.append_start(loaded.step, job.place.on, job.cluster.num_workers)
    speed = Speed(job.experiment.global_batch_size)
    saves_at = training.core.plan.saves_at
    save = SaveCheckpoint(engine.state, checkpoints, saves_at, training.send, run.publish)
    trackers = [open_tracker(name, clients[name], run, training.send) for name in clients]
    with ExitStack() as stack:
        actions = _build_actions(training, run, first_step, speed, save, stack)
        for action in user_actions:
            stack.callback(action.close)
        actions += [*trackers, *user_actions]
        outcome = _train(training, run, actions, loaded, validation, trackers)
        state = engine.state()
        if state.step > first_step:
            save.save(state.step, outcome.evaluation)
    _finish(training, run, state, outcome, speed, trackers)
    return training.was_stopped(outcome)


def _open_run(training: Training, run: RunFolder) -> Checkpoints:
    """Begin the run folder, or compare it with this run; return its checkpoints."""
    from paceline.build import locate
    from paceline.fingerprint import code_digests, data_facts

    job, core, send = training.job, training.core, training.send
    kernels = core.template.kernels
    if reason := why_not_own(job.experiment, kernels):
        send(Warn(f"training uses TensorFlow's kernels, which are slower: {reason}"))
    code = code_digests(job)
    for line in run.open(job.experiment, data_facts(job, core), kernels, code):
        send(Warn(f"a library changed since this run began, bits may differ: {line}"))
    specs = specs_of(job.experiment, job.run.actions)
    keep_copies(run.path, [(name, locate(job, name, spec)) for name, spec in specs])
    return Checkpoints(
        run.checkpoints,
        core.layout,
        keep=job.run.keep,
        experiment_digest=job.experiment.digest(),
        warn=lambda text: send(Warn(text.replace(str(run.path), run.where))),
        guard=run.check_lease,
    )


def _first_state(training: Training, checkpoints: Checkpoints, run: RunFolder) -> State:
    """Return the newest checkpoint, or the state from which the experiment starts."""
    core, init_from = training.core, training.job.experiment.model.init_from
    if state := checkpoints.latest():
        return _with_unwritten_tails(state, run)
    if checkpoints.steps():
        raise UserError(
            f"every checkpoint of {run.where} is damaged; remove them to start over, "
            "or use another --run-dir"
        )
    state = _initial_state(core)
    if not init_from:
        return state
    from paceline.models.warm_start import scaled_otherwise, start_from

    if note := scaled_otherwise(core.experiment):
        training.send(Warn(note))
    state, new = start_from(init_from, core.template, state)
    training.send(Warn(f"started from {init_from}; new are {', '.join(new) or 'none'}"))
    return state


def _initial_state(core: Core) -> State:
    """Return the state of step 0, with what is computed from the data."""
    state, experiment = core.initial_state(), core.experiment
    if not experiment.model.whitening:
        return state
    from paceline.models.whitening import whiten

    return whiten(state, core.template, core.train, experiment.scaling, experiment.model.whitening)


def _with_unwritten_tails(state: State, run: RunFolder) -> State:
    """Leave only those tails that the metrics before the state lack."""
    written = [record["step"] for record in run.metrics.read() if record["step"] < state.step]
    lacking = min(len(state.tails), state.step - max(written, default=0))
    return replace(state, tails=state.tails[len(state.tails) - lacking :])


def _build_actions(
    training: Training,
    run: RunFolder,
    first_step: int,
    speed: Speed,
    save: SaveCheckpoint,
    stack: ExitStack,
) -> list[Action]:
    """Return the chief's own actions in their order; `stack` closes them."""
    job, core, engine = training.job, training.core, training.engine
    actions: list[Action] = []
    if job.run.profiled:
        profile = Profile(run.events, *job.run.profiled, first_step)
        actions.append(stack.enter_context(closing(profile)))
    board = _open_board(training, run, first_step)
    stack.enter_context(closing(board))
    actions += [StopOnNonFiniteLoss(), speed, WriteMetrics(run), board]
    if job.run.histograms:
        actions.append(HistogramsAtSaves(board, engine.state, core.layout, core.plan.saves_at))
    write_evaluation = WriteEvaluation(run, partial(images.evaluated_images, core))
    return [*actions, SendMetrics(training.send), save, write_evaluation]


def _open_board(training: Training, run: RunFolder, first_step: int) -> TensorBoard:
    core = training.core
    board = TensorBoard(run.events, first_step, core.source.classes, run.epoch)
    board.hyper_parameters(training.job.experiment)
    if not first_step:
        board.image_grid("input", images.example_images(core))
        board.graph(core.template.model)
    return board


def _train(
    training: Training,
    run: RunFolder,
    actions: list[Action],
    state: State,
    validation: list[float],
    trackers: list[Tracking],
) -> Outcome:
    try:
        return training.run(actions, state, validation)
    except Exception as error:
        with suppress(Exception):  # if even this fails, the error itself says why
            step = training.engine.state().step
            result = {"step": step, "finished": False, "error": str(error)}
            run.write_result(result)
            finish_trackers(trackers, run, result)
        raise


def _finish(
    training: Training,
    run: RunFolder,
    state: State,
    outcome: Outcome,
    speed: Speed,
    trackers: list[Tracking],
) -> None:
    result = training.result(state, outcome, speed)
    run.write_result(result)
    finish_trackers(trackers, run, result)
    training.send(Result(result | {"run_dir": run.where}))
