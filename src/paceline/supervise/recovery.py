"""The state in the memory of the workers that survive when one is lost.

The workers answer the requests (`run_folder.survivor`). The one with the newest complete state
saves it as a checkpoint, so the next attempt does not compute those steps again. If no worker has
one, or none answers, the last checkpoint remains.
"""

import queue
import time
from collections.abc import Sequence
from contextlib import suppress

from paceline.messages import Held
from paceline.supervise.interface import Inbox, Worker

ANSWER_S = 5.0
SAVE_S = 60.0


def keep_newest(workers: Sequence[Worker], silent: Sequence[int], inbox: Inbox, lease: int) -> int:
    """Let the worker with the newest state save it; return its step, or -1.

    `lease` is the number of the chief's lease, which another command may have taken over.
    """
    cluster, is_alone = workers[0].job.cluster, len(workers) == 1
    if cluster.ps or (is_alone and not cluster.is_chief):  # then it does not see the run folder
        return -1
    survivors = {i for i, worker in enumerate(workers) if worker.poll() is None} - {*silent}
    for index in survivors:
        workers[index].ask("held")
    steps = _collect_steps(survivors, inbox, ANSWER_S)
    newest = max(steps, key=lambda index: (steps[index], -index), default=-1)
    if newest < 0 or steps[newest] < 0:
        return -1
    workers[newest].ask("keep", lease=lease)
    return _collect_steps({newest}, inbox, SAVE_S).get(newest, -1)


def _collect_steps(waiting: set[int], inbox: Inbox, limit_s: float) -> dict[int, int]:
    """Return the step of each worker that answers in time."""
    steps, deadline = dict[int, int](), time.monotonic() + limit_s
    while waiting and time.monotonic() < deadline:
        with suppress(queue.Empty):
            index, message = inbox.get(timeout=0.1)
            if isinstance(message, Held):
                steps[index] = message.step
            if message is None or isinstance(message, Held):
                waiting.discard(index)
    return steps
