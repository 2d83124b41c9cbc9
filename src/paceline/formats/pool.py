"""Run a function over many jobs in several processes, with a progress bar.

The processes do not import TensorFlow unless the function does. A process ends when its parent
does. An interrupt from the keyboard reaches the parent only.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from rich.console import Console

from paceline.errors import UserError
from paceline.storage.progress_bar import late_bar

Job = TypeVar("Job")
Result = TypeVar("Result")
Tick = Callable[[int], None]
"""Reports progress: the number of images or bytes just completed."""

POLL_S = 0.2


class RunJobs(Protocol):
    """Yields the results of a function that is importable by its name, as `run_jobs` does."""

    def __call__(
        self,
        function: Callable[[Job, Tick], Result],
        jobs: Sequence[Job],
        what: str,
        total: int,
        console: Console | None,
        /,
    ) -> Iterable[Result]: ...


def run_jobs(
    function: Callable[[Job, Tick], Result],
    jobs: Sequence[Job],
    what: str,
    total: int,
    console: Console | None = None,
    *,
    processes: int = 0,
) -> Iterator[Result]:
    """Yield results as they come. `processes` 0 means one per core; 1 means this process. The
    `function` must be importable by its name."""
    processes = min(processes or len(os.sched_getaffinity(0)), max(1, len(jobs)))
    with late_bar(what, total, console) as advance:
        if processes == 1:
            for job in jobs:
                yield function(job, advance)
            return
        context = multiprocessing.get_context("spawn")
        counter = context.Value("q", 0)
        with ProcessPoolExecutor(processes, context, _start, (counter,)) as pool:
            waiting = {pool.submit(_run, function, job) for job in jobs}
            try:
                yield from _collect(waiting, counter, advance)
            except BrokenProcessPool as error:
                reason = "another program ended a process, or the memory was full"
                raise UserError(f"{what}: {reason}; the same command continues") from error
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _collect(
    waiting: set[Future[Any]], counter: Any, advance: Callable[[float], None]
) -> Iterator[Any]:
    seen = 0
    while waiting:
        done, waiting = wait(waiting, POLL_S, FIRST_COMPLETED)
        advance(counter.value - seen)
        seen = counter.value
        for future in done:
            yield future.result()


_counter: Any = None
"""The progress of all processes, in the memory that they share; set in each process."""


def _start(counter: Any) -> None:
    global _counter
    _counter = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(function: Callable[[Any, Tick], Any], job: Any) -> Any:
    return function(job, _tick)


def _tick(amount: int) -> None:
    with _counter.get_lock():
        _counter.value += amount
