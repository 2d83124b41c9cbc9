"""The state in the memory of the workers that survive when one is lost.

The workers answer the requests (`run_folder.survivor`). The one with the newest complete state
saves it as a checkpoint, so the next attempt does not compute those steps again. If no worker has
one, or none answers, the last checkpoint remains.
"""

from __future__ import annotations

import base64
import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from paceline.errors import UserError
from paceline.messages import Held, Piece
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import replacing
from paceline.supervise.interface import Inbox, Worker

ANSWER_S = 5.0
SAVE_S = 60.0
"""The longest silence of a worker that saves its state."""


def keep_newest(workers: Sequence[Worker], silent: Sequence[int], inbox: Inbox, lease: int) -> int:
    """Let the worker with the newest state save it; return its step, or -1.

    `lease` is the number of the chief's lease: if the chief is lost, another command may have taken
    over the run folder.
    """
    cluster, is_alone = workers[0].job.cluster, len(workers) == 1
    if cluster.ps or (is_alone and not cluster.is_chief):  # then it does not see the run folder
        return -1
    running = [index for index, worker in enumerate(workers) if worker.poll() is None]
    survivors = set(running) - set(silent)
    for index in survivors:
        workers[index].ask("held")
    steps = _collect_steps(survivors, inbox)
    newest = max(steps, key=lambda index: (steps[index], -index), default=-1)
    if newest < 0 or steps[newest] < 0:
        return -1
    workers[newest].ask("keep", lease=lease)
    run = RunFolder(workers[newest].job.run.run_dir)
    with suppress(OSError, UserError):  # the last checkpoint remains
        return _receive(newest, inbox, run, lease)
    return -1


def _collect_steps(waiting: set[int], inbox: Inbox) -> dict[int, int]:
    """Return the step of each worker that answers."""
    steps, deadline = dict[int, int](), time.monotonic() + ANSWER_S
    while waiting and time.monotonic() < deadline:
        with suppress(queue.Empty):
            index, message = inbox.get(timeout=0.1)
            if isinstance(message, Held):
                steps[index] = message.step
            if message is None or isinstance(message, Held):
                waiting.discard(index)
    return steps


def _receive(worker: int, inbox: Inbox, run: RunFolder, lease: int) -> int:
    """Wait until the worker has saved its state, or write the file whose pieces it sends."""
    pieces, deadline = list[bytes](), time.monotonic() + SAVE_S
    while time.monotonic() < deadline:
        with suppress(queue.Empty):
            index, message = inbox.get(timeout=0.1)
            if index != worker:
                continue
            match message:
                case None:
                    return -1
                case Piece():
                    pieces.append(base64.b64decode(message.content))
                    deadline = time.monotonic() + SAVE_S
                case Held():
                    if message.name:
                        run.check_number(lease)
                        with replacing(run.checkpoints / Path(message.name).name) as file:
                            file.writelines(pieces)
                    return message.step
    return -1
