"""Run a function over many jobs in several processes, with a progress bar.

The processes do not import TensorFlow unless the function does. A process ends when its parent
does. An interrupt from the keyboard reaches the parent only.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from paceline.errors import UserError
from paceline.storage.progress_bar import late_bar

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_jobs(
    function: Callable[[Job], Result], jobs: Sequence[Job], what: str, processes: int = 0
) -> Iterator[Result]:
    """Yield results as they come. `processes` 0 means one per core; 1 means this process. The
    `function` must be importable by its name."""
    processes = min(processes or len(os.sched_getaffinity(0)), max(1, len(jobs)))
    with late_bar(what, len(jobs)) as advance:
        if processes == 1:
            for job in jobs:
                yield function(job)
                advance(1)
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, _start) as pool:
            try:
                for done in as_completed([pool.submit(function, job) for job in jobs]):
                    yield done.result()
                    advance(1)
            except BrokenProcessPool as error:
                reason = "another program ended a process, or the memory was full"
                raise UserError(f"{what}: {reason}; the same command continues") from error
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
