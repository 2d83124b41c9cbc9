"""Many files between a folder on storage and a local one: in parallel, with progress, with retries.

One file at a time belongs to `storage.Store`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from paceline.storage.backends import PATIENCE_S, StorageFault, Store
from paceline.storage.retry import growing_pauses, retry

Result = TypeVar("Result")

PARALLEL = 16
REPORT_EVERY_S = 5.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""Between two tries: each wait is twice the one before."""


def fetch_files(
    store: Store,
    sizes: Mapping[str, int],
    target: Path,
    report: Callable[[str], None],
    check: Callable[[str, bool], None] = lambda name, found: None,
    local_names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Copy files to `target`; `report` gets a line about the progress every few seconds.

    `check` is called after each file, with its name and whether it was still there, by one thread
    at a time. `local_names` has the names of those that have another name in `target`. Passing
    faults are tried again. After the first other error no other file is begun; those under way are
    completed.
    """
    advance = _reporter(f"copying {store.url}", sum(sizes.values()), report)
    failed = threading.Event()
    checking = threading.Lock()

    def fetch(name: str) -> None:
        if failed.is_set():
            return
        try:
            place = target / local_names.get(name, name)
            found = retry_storage(lambda: store.get(name, place, advance), report)
            with checking:
                check(name, found)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(fetch, sizes))


def put_files(store: Store, folder: Path, names: list[str], advance: Callable[[int], None]) -> None:
    """Copy files of `folder` to storage; `advance` is called with 1 after each."""

    def put(name: str) -> None:
        retry_storage(lambda: store.put(name, folder / name), lambda text: None)

    with ThreadPoolExecutor(PARALLEL) as pool:
        for _ in pool.map(put, names):
            advance(1)


def retry_storage(action: Callable[[], Result], warn: Callable[[str], None]) -> Result:
    """Return the result of `action`; if storage fails for a time, wait and try again.

    A training of days does not end because storage is away for half a minute.
    """
    return retry(action, growing_pauses(FIRST_WAIT_S, LONGEST_WAIT_S, PATIENCE_S), _fails, warn)


def _fails(error: Exception) -> bool:
    return isinstance(error, StorageFault)


def _reporter(what: str, total: int, report: Callable[[str], None]) -> Callable[[int], None]:
    """Return a function that adds up bytes, from any thread, and reports the sum now and then."""
    done = 0
    reported = time.monotonic()
    counting = threading.Lock()

    def advance(size: int) -> None:
        nonlocal done, reported
        with counting:
            done += size
            if time.monotonic() - reported > REPORT_EVERY_S:
                reported = time.monotonic()
                report(f"{what}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")

    return advance
