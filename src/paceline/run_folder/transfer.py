"""Many files between a folder on storage and a local one: in parallel, with progress, with retries.

One file at a time belongs to `storage.Store`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paceline.run_folder.storage import StorageError, Store

PARALLEL = 16
REPORT_EVERY_S = 5.0
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before each new try, after storage itself has given up after a few."""


def fetch_files(
    store: Store,
    sizes: Mapping[str, int],
    target: Path,
    report: Callable[[str], None],
    check: Callable[[str, bool], None] = lambda name, found: None,
) -> None:
    """Copy files to `target`; `report` gets a line about the progress every few seconds.

    `check` is called after each file, with its name and whether it was still there, by one thread
    at a time. After the first error no other file is begun; those under way are completed.
    """
    advance = _reporter(f"copying {store.url}", sum(sizes.values()), report)
    failed = threading.Event()
    checking = threading.Lock()

    def fetch(name: str) -> None:
        if failed.is_set():
            return
        try:
            found = store.get(name, target / name, advance)
            with checking:
                check(name, found)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(fetch, sizes))


def put_files(store: Store, folder: Path, names: list[str], advance: Callable[[int], None]) -> None:
    """Copy files of `folder` to storage; `advance` is called with 1 after each."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        for _ in pool.map(lambda name: store.put(name, folder / name), names):
            advance(1)


def retrying(action: Callable[[], None], warn: Callable[[str], None]) -> None:
    """Call `action`; if storage fails for a time, wait and try again.

    A training of days does not end because storage is away for half a minute.
    """
    for wait_s in (*WAITS_S, None):
        try:
            action()
            return
        except StorageError as error:
            if not error.passing or wait_s is None:
                raise
            warn(f"{error}; trying again in {wait_s:.0f} s")
            time.sleep(wait_s)


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
