"""Trying again after an error that may pass: which errors do, and how long the pauses are."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from paceline.errors import PassingFault

T = TypeVar("T")

PAUSES_S = (0.3, 1.0, 3.0)
"""Between the tries to use a file on a disk."""
PASSING = frozenset(
    getattr(errno, name)
    for name in (
        *("EIO", "ESTALE", "EREMOTEIO", "ETIMEDOUT", "EAGAIN", "ENOTCONN", "ECONNRESET"),
        *("ECONNABORTED", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ESHUTDOWN"),
    )
)
"""Errors of a disk, a mount or a network that may be gone a moment later."""


def may_pass(error: Exception) -> bool:
    """Return whether the same action may succeed later."""
    is_passing = isinstance(error, OSError) and error.errno in PASSING
    return is_passing or isinstance(error, PassingFault)


def retry(
    action: Callable[[], T],
    pauses_s: Iterable[float] | None = None,
    passes: Callable[[Exception], bool] = may_pass,
    warn: Callable[[str], None] = lambda text: None,
) -> T:
    """Return the result of `action`; after an error that `passes`, pause and try again.

    There is one try more than there are pauses, by default `PAUSES_S`. The last error is raised.
    """
    for pause_s in PAUSES_S if pauses_s is None else pauses_s:
        try:
            return action()
        except Exception as error:
            if not passes(error):
                raise
            warn(f"{error}; trying again in {pause_s:.0f} s")
        time.sleep(pause_s)
    return action()


def growing_pauses(first_s: float, longest_s: float, total_s: float) -> Iterator[float]:
    """Yield pauses, each twice the one before, as long as they end within `total_s` from now."""
    deadline, pause_s = time.monotonic() + total_s, first_s
    while time.monotonic() + pause_s <= deadline:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)
