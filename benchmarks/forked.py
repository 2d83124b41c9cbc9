"""Workers that are forked from one process, so that TensorFlow is imported once for all of them."""

import json
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any


def run_forked(works: Sequence[Callable[[], Any]], timeout_s: int) -> list[Any]:
    """Run each function in a process of its own; return the results, None for one that failed.

    A result must fit into JSON. A process ends when all have sent their results, because slower
    ones may still fetch its last vectors.
    """
    all_done = os.pipe()
    started = [_fork(work, timeout_s, all_done) for work in works]
    results = []
    for _, reader in started:
        with os.fdopen(reader) as file:
            results.append(json.loads(file.read() or "null"))
    for end in all_done:
        os.close(end)
    for pid, _ in started:
        os.waitpid(pid, 0)
    return results


def _fork(work: Callable[[], Any], timeout_s: int, all_done: tuple[int, int]) -> tuple[int, int]:
    """Start a process; return its number and the pipe on which it sends its result."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    signal.alarm(timeout_s)
    os.close(all_done[1])
    try:
        os.write(writer, json.dumps(work()).encode())
        os.close(writer)
        os.read(all_done[0], 1)  # until it is closed
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # without the end of TensorFlow, which would wait for the others
