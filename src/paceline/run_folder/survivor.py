"""What a worker does with the state in its memory when another worker is lost.

The parent asks the survivors for the step of their state, and the one with the newest to save it as
a checkpoint. A thread answers, because the training may wait for the lost worker for ever.
"""

from __future__ import annotations

import base64
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.engines.base import Engine, HoldsState
from paceline.job import Job
from paceline.maths.state import State
from paceline.messages import Held, Piece, Send
from paceline.run_folder.actions import check_finite
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import to_log
from paceline.storage.locations import is_remote

if TYPE_CHECKING:
    from paceline.maths.replica import Core

LINGER_S = 60.0
"""How long a survivor waits for the parent's request before it exits."""
PIECE_BYTES = 1 << 20


class Survivor:
    """Answers the parent's requests `held` and `keep`. Until `offer`, there is nothing to keep."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._offer: tuple[Job, Core, HoldsState, RunFolder] | None = None
        self._state: State | None = None

    def offer(self, job: Job, core: Core, engine: Engine, run: RunFolder) -> None:
        """From now on, the state of this training can be kept, if this worker can save it."""
        # only the chief can write a run folder on remote storage: it holds the lease
        can_save = job.cluster.is_chief or not is_remote(run.where)
        if can_save and isinstance(engine, HoldsState):
            self._offer = job, core, engine, run

    def withdraw(self) -> None:
        """The training has ended: its state is in a checkpoint."""
        self._offer = None

    def linger(self) -> None:
        """Keep the process alive for the parent's requests, if there is something to keep."""
        if self._offer:
            threading.Event().wait(LINGER_S)

    def answer(self, request: dict[str, Any]) -> None:
        """Answer `held` with the step of the state, `keep` when that is saved; -1 without."""
        answer = Held(-1)
        try:
            if self._offer and request["request"] == "held":
                self._state = self._offer[2].held()
                answer = Held(self._state.step or -1) if self._state else answer
            elif self._offer and self._state:
                answer = self._keep(self._state, request["lease"], *self._offer)
        except Exception:  # whatever it is, the last checkpoint remains
            to_log(traceback.format_exc().rstrip())
        self._send(answer)

    def _keep(
        self, state: State, lease: int, job: Job, core: Core, engine: HoldsState, run: RunFolder
    ) -> Held:
        """Save the state that was read last; a worker on another host sends it in pieces.

        A worker that is not the chief writes only while the chief's `lease` is the last one.
        """
        checkpoints = Checkpoints(
            run.checkpoints,
            core.layout,
            keep=job.run.keep,
            experiment_digest=job.experiment.digest(),
            guard=run.check_lease if job.cluster.is_chief else partial(run.check_number, lease),
        )
        if state.step in checkpoints.steps():
            return Held(state.step)
        check_finite(state)
        if job.cluster.is_chief or job.place.kind.one_machine:
            checkpoints.save(state)
            run.publish()
            run.unlock()
            return Held(state.step)
        path, content = checkpoints.file(state)
        for first in range(0, len(content), PIECE_BYTES):
            piece = content[first : first + PIECE_BYTES]
            self._send(Piece(base64.b64encode(piece).decode()))
        return Held(state.step, path.name)
