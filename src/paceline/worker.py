"""The story of a worker: one process that trains its share of a job, from start to result.

Read `run_worker` first. The chief and the other workers do the same; they differ only in their run:
the chief's reads and writes the run folder, the others' writes nothing. `worker_process` is the
process around it, and `loop` the training loop.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from paceline import loop
from paceline.chief import FollowerRun, open_run
from paceline.engines import devices
from paceline.engines.base import connect
from paceline.job import Job
from paceline.loop import Action, Outcome, StopRequested
from paceline.maths.metrics import BlockResult, EvalResult, Tail, block_result
from paceline.messages import Send, Working
from paceline.storage.locations import bring_data

if TYPE_CHECKING:
    from paceline.engines.base import Engine
    from paceline.maths.replica import Core
    from paceline.maths.state import State
    from paceline.run_folder.folder import RunFolder


@dataclass
class Memory:
    """What this worker trains now. If another worker is lost, `run_folder.survivor` saves it."""

    training: tuple[Job, Core, Engine, RunFolder] | None = None
    held: State | None = None
    """The state that the parent asked for."""


def run_worker(
    job: Job, send: Send, stop: Event, memory: Memory, at_end: ExitStack
) -> Outcome | None:
    """Train this worker's share of a job; return None if the run was finished before.

    `send` takes messages to the parent, `stop` is set by a SIGTERM. `memory` shows what is trained
    here. What is in `at_end` runs after an error has been reported.
    """
    run = open_run(job, send, at_end)  # the chief's is locked
    if run is None:  # it is finished
        return None
    bring_data(job.experiment.data.dir, send)
    devices.import_tensorflow(job)  # with its settings, before any other module imports it
    from paceline.build import build_core
    from paceline.fingerprint import fingerprint

    open_engine = connect(job, partial(_wants_stop, send, stop))  # before the first tensor
    core = build_core(job)  # data, model and the pure functions of a step
    engine = open_engine(core)
    engine.check(fingerprint(job, core))  # all workers compute the same bits, or none trains

    memory.training = job, core, engine, run.folder
    with run.begin(core, engine):
        state = engine.load(run.first_state())  # all workers continue from the chief's
        actions = [*run.actions(state), _stop_action(job, core, stop)]
        outcome = train_from(state, core, engine, run, actions)
        run.finish(engine.state(), outcome)
    engine.close()  # the others wait here for the chief, and one of them saves if it is lost
    return outcome


def train_from(
    state: State, core: Core, engine: Engine, run: FollowerRun, actions: list[Action]
) -> Outcome:
    """Train from a state to the end of the plan, or until an action or early stopping ends it."""
    plan, ends_early = core.plan, run.ends_early(state)
    if state.reported_step == plan.total_steps:  # stopped between the last step and the result
        return Outcome(evaluation=engine.evaluate(final=True))
    if ends_early and ends_early.has_ended():
        return Outcome(evaluation=replace(engine.evaluate(final=True), ended_early=True))
    if plan.stops_at(state.reported_step):
        return Outcome()  # an earlier command stopped here
    recovered = None
    if len(state.tails):  # the block that led to this state, which survived the loss of a worker
        seconds = float(state.tails[-1, Tail.SECONDS])
        recovered = block_result(core, state.step, state.tails, seconds)
    return loop.train(engine, plan, actions, state.reported_step, ends_early, recovered)


def _wants_stop(send: Send, stop: Event) -> bool:
    """Return whether someone asked this worker to stop, and show the parent that it is active."""
    send(Working())
    return stop.is_set()


def _stop_action(job: Job, core: Core, stop: Event) -> Action:
    """Return the action that ends the loop. Several workers agree on a stop in `Engine.advance`."""
    alone = job.cluster.num_workers == 1

    def stop_if_asked(block: BlockResult, evaluation: EvalResult | None) -> None:
        asked = block.stop_requested or (alone and stop.is_set())
        if asked or core.plan.stops_at(block.step):
            raise StopRequested

    return stop_if_asked
