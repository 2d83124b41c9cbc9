"""Forwards the signals of a command to its group of workers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.places.supervise.group import Group


@contextmanager
def forwarded_signals(group: Group) -> Iterator[None]:
    """Forward Ctrl-C, SIGTERM and SIGUSR1 to the group. Enter it before the group starts.

    Slurm can send SIGUSR1 some time before a job's time limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # a notebook or a service handles its own signals
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    old = {
        number: signal.signal(number, lambda number, _: group.interrupt(number))
        for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
