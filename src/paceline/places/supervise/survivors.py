"""The state in the memory of the workers that survive when one is lost.

The workers answer the requests (`runs.survivor`). The one with the newest whole state saves it as a
checkpoint, so the next attempt does not compute those steps again. If none has one, or no answer
comes, the last checkpoint remains.
"""

from __future__ import annotations

import base64
import json
import queue
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Held, Kept, Message, Piece
from paceline.places.supervise.process import Process

ANSWER_S = 5.0
SAVE_S = 60.0
"""The longest silence of a worker that saves its state."""

Inbox = queue.Queue[tuple[int, Message | None]]


def keep_newest(
    jobs: Sequence[Job], workers: Mapping[int, Process], inbox: Inbox, lease: int = 0
) -> int:
    """Let the worker with the newest state save it; return its step, or -1.

    `jobs` are those of the whole group, `workers` those that can answer, `lease` is the number of
    the chief's lease: if the chief is lost, another command may have taken over the run folder. A
    task that is alone in its group sees the run folder only if it is the chief.
    """
    cluster = jobs[0].cluster
    if cluster.ps or not (cluster.is_chief or len(jobs) > 1):
        return -1
    for process in workers.values():
        _ask(process, "held")
    steps = _collect_steps(set(workers), inbox)
    newest = max(steps, key=lambda index: (steps[index], -index), default=-1)
    if newest < 0 or steps[newest] < 0:
        return -1
    _ask(workers[newest], "keep", lease=lease)
    with suppress(OSError, UserError):  # the last checkpoint remains
        return _receive(newest, inbox, jobs[0].run.run_dir, lease)
    return -1


def _ask(process: Process, request: str, **facts: int) -> None:
    assert process.stdin
    with suppress(OSError, ValueError):  # it has ended meanwhile
        process.stdin.write(json.dumps({"request": request} | facts).encode() + b"\n")
        process.stdin.flush()


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


def _receive(worker: int, inbox: Inbox, run_dir: str, lease: int) -> int:
    """Wait until the worker has saved its state, or write the file whose pieces it sends."""
    # here, because the import of a group must not need more than Python itself
    from paceline.runs.folder import RunFolder
    from paceline.storage.files import replacing

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
                case Kept() if message.name:
                    run = RunFolder(run_dir)
                    run.check_number(lease)
                    with replacing(run.checkpoints / Path(message.name).name) as file:
                        file.writelines(pieces)
                    return message.step
                case Kept():
                    return message.step
    return -1
