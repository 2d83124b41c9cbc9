"""The chief's part of a training, whichever the engine: the run folder, the first state, the actions, the result."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.config.experiment import differences
from paceline.config.job import Job
from paceline.config.plan import Plan
from paceline.config.plugins import load_function
from paceline.core.state import State
from paceline.errors import UserError
from paceline.messages import Result, Send, Start, Warn
from paceline.run_folder.checkpoint import Checkpoints
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.tensorboard import HistogramsAtSaves, Profile, TensorBoard
from paceline.worker import actions, build, loop

if TYPE_CHECKING:
    from paceline.core.replica import Core


def lead(
    job: Job, core: Core, engine: loop.Engine, run: RunFolder, send: Send, stop: threading.Event
) -> bool:
    """The chief's part: it alone reads and writes the run folder. Answers whether a request stopped it."""
    # loaded first, so that a mistake in them is told before anything begins
    user_actions = [actions.UserAction(spec, load_function(spec)) for spec in job.run.actions]
    for line in run.open(job.experiment, build.facts(core)):
        send(Warn(f"a library changed since this run began, bits may differ: {line}"))
    checkpoints = Checkpoints(
        run.checkpoints,
        core.layout,
        keep=job.run.keep,
        experiment_digest=job.experiment.digest(),
        warn=lambda text: send(Warn(text.replace(str(run.path), run.where))),
    )
    state = engine.load(_first_state(job, core, checkpoints, run, send))
    run.metrics.truncate(state.step)
    send(start_message(core, state.step, build.derived(job, core), run.where))
    run.append_start(state.step, job.place.on, job.cluster.num_workers)
    speed, board = (
        Speed(job.experiment.global_batch_size),
        TensorBoard(run.events, state.step, core.source.classes),
    )
    board.hyper_parameters(job.experiment)
    if not state.step:
        board.picture_grid("input", build.example_pictures(core))
        board.graph(core.template.model)
    profile = [Profile(run.events, *job.run.profiled, state.step)] if job.run.profiled else []
    histograms = HistogramsAtSaves(board, engine.state, core.layout, core.plan.saves_at)
    save = actions.SaveCheckpoint(engine.state, checkpoints, core.plan.saves_at, send, run.publish)
    list_of_actions: list[loop.Action] = [
        *profile,
        actions.StopOnNonFiniteLoss(),
        speed,
        actions.WriteMetrics(run),
        board,
        *([histograms] if job.run.histograms else []),
        actions.SendMetrics(send),
        save,
        actions.WriteEvaluation(run, partial(build.pictures_of, core)),
        *user_actions,
        *stops(job, core.plan, stop),
    ]
    try:
        metrics = train(core, engine, list_of_actions, state.step)
    except actions.StopRequested as request:
        metrics = dict(request.metrics)
        if request.step > state.step:
            save.save(request.step, metrics)
    except Exception as error:
        with contextlib.suppress(
            Exception
        ):  # where even this cannot be read or written, the error itself says why
            run.write_result({"step": engine.state().step, "finished": False, "error": str(error)})
        raise
    finally:
        for each in profile:
            each.close()
        board.close()
    outcome = result(core, engine.state(), metrics, speed.images_per_second())
    run.write_result(outcome)
    send(Result(outcome | {"run_dir": run.where}))
    return stop.is_set() or bool(metrics.get("stop_requested"))


def stops(job: Job, plan: Plan, stop: threading.Event) -> list[loop.Action]:
    on_request = (
        actions.StopOnRequest(stop.is_set)
        if job.cluster.num_workers == 1
        else actions.StopOnRequest()
    )
    return [on_request, actions.StopAt(plan.stops_at)]


def train(
    core: Core, engine: loop.Engine, list_of_actions: list[loop.Action], first_step: int
) -> loop.Metrics:
    if core.plan.stops_at(first_step) and first_step < core.plan.total_steps:
        raise actions.StopRequested(
            first_step
        )  # an earlier command got here: stop again, and not a step later
    metrics = loop.train(engine, core.plan, list_of_actions, first_step)
    if "test_accuracy" not in metrics:  # it was stopped between its last step and its result
        metrics |= engine.evaluate(final=True)
    return metrics


def result(
    core: Core, state: State, metrics: loop.Metrics, images_per_second: float | None
) -> dict[str, Any]:
    return {
        "step": state.step,
        "finished": state.step == core.plan.total_steps,
        "test_accuracy": metrics.get("test_accuracy"),
        "test_loss": metrics.get("test_loss"),
        "images_per_second": images_per_second,
        "state_sha256": state.sha256(),
    }


def finished(run: RunFolder, job: Job) -> dict[str, Any] | None:
    """The result of a run that has nothing left to do. Needs no TensorFlow, so the answer is quick."""
    result = run.read_result() if run.exists() else None
    same = result and not differences(run.experiment().to_json(), job.experiment.to_json())
    return result if same and result and result["finished"] else None


def _first_state(
    job: Job, core: Core, checkpoints: Checkpoints, run: RunFolder, send: Send
) -> State:
    """The newest checkpoint, or where the experiment starts."""
    state = checkpoints.latest()
    if state is None and checkpoints.steps():
        raise UserError(
            f"every checkpoint of {run.where} is damaged; remove them to start over, or use another --run-dir"
        )
    if state or not job.experiment.model.init_from:
        return state or core.initial_state()
    from paceline.models.warm_start import start_from

    state, new = start_from(job.experiment.model.init_from, core.template, core.initial_state())
    send(Warn(f"started from {job.experiment.model.init_from}; new are {', '.join(new) or 'none'}"))
    return state


def start_message(core: Core, first_step: int, line: str, run_dir: str = "") -> Start:
    plan = core.plan
    return Start(plan.total_steps, plan.steps_per_epoch, first_step, line, run_dir)


class Speed:
    """An action that measures training alone; the first block is left out, because it compiles."""

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size, self._blocks = global_batch_size, list[tuple[int, float]]()

    def __call__(self, step: int, metrics: actions.Metrics) -> None:
        self._blocks.append(
            (
                len(metrics["per_step"]["loss"]),
                self._global_batch_size / metrics["images_per_second"],
            )
        )

    def images_per_second(self) -> float | None:
        blocks = self._blocks[1:] or self._blocks
        seconds = sum(steps * each for steps, each in blocks)
        return (
            round(sum(steps for steps, _ in blocks) * self._global_batch_size / seconds, 1)
            if seconds
            else None
        )
