"""What a worker does with the state in its memory when another worker is lost.

The parent asks the survivors for the step of their state (`held`), and the one with the newest to
save it as a checkpoint (`keep`). A thread answers, because the training may wait for the lost
worker for ever.
"""

from __future__ import annotations

import traceback
from functools import partial
from typing import TYPE_CHECKING

from paceline.experiment.fields import Json
from paceline.maths.state import State
from paceline.messages import Held, Send
from paceline.run_folder.actions import check_finite
from paceline.run_folder.checkpoints import Checkpoints, identity_of
from paceline.storage.files import to_log
from paceline.storage.locations import is_remote

if TYPE_CHECKING:
    from paceline.engines.base import Engine
    from paceline.job import Job
    from paceline.maths.replica import Core
    from paceline.run_folder.folder import RunFolder
    from paceline.worker import Memory


def answer(request: Json, memory: Memory, send: Send) -> None:
    """Answer `held` with the step of the state, `keep` when that is saved; -1 without."""
    held = Held(-1)
    try:
        if request["request"] == "held":
            memory.held = _read(memory)
            held = Held(memory.held.step or -1) if memory.held else held
        elif memory.held and memory.training:
            held = _keep(memory.held, request["lease"], *memory.training)
    except Exception:  # whatever it is, the last checkpoint remains
        to_log(traceback.format_exc().rstrip())
    send(held)


def _read(memory: Memory) -> State | None:
    """Return the state, if this worker can save it."""
    if not memory.training:
        return None
    job, _, engine, run = memory.training
    # only the chief can write a run folder on remote storage: it holds the lease
    can_save = job.cluster.is_chief or (not is_remote(run.where) and run.exists())
    held = getattr(engine, "held", None)  # one worker's state is enough to continue
    state: State | None = held() if held and can_save else None
    return state


def _keep(state: State, lease: int, job: Job, core: Core, _: Engine, run: RunFolder) -> Held:
    """Save the state that was read last. A worker that is not the chief writes only while the
    chief's `lease` is the last one."""
    checkpoints = Checkpoints(
        run.checkpoints,
        core.layout,
        keep=job.run.keep,
        identity=identity_of(run),
        guard=run.check_lease if job.cluster.is_chief else partial(run.check_number, lease),
    )
    if state.step not in checkpoints.steps():
        check_finite(state)
        checkpoints.save(state)
        run.publish()
        run.unlock()
    return Held(state.step)
