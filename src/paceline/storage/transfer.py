"""Many files between a remote and a local folder: in parallel, with progress and retries.

One file at a time belongs to `remote.Store`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paceline.storage.remote import ReadOnlyFolder, Store, retry_storage

Report = Callable[[str], None]
"""Takes a line about the progress."""

PARALLEL = 16
REPORT_EVERY_S = 5.0


def fetch_files(
    store: Store | ReadOnlyFolder,
    targets: Mapping[str, Path],
    total_bytes: int,
    report: Report,
    fetched: Callable[[str], None] = lambda name: None,
) -> list[str]:
    """Copy each file to its target; return the names of the files that no longer exist.

    `fetched` is called after each file, by one thread at a time. After the first error no other
    file is started; those that are under way are completed.
    """
    advance = _reporter(f"copying {store.url}", total_bytes, report)
    failed, noting = threading.Event(), threading.Lock()
    missing: list[str] = []

    def fetch(name: str) -> None:
        if failed.is_set():
            return
        try:
            found = retry_storage(lambda: store.get(name, targets[name], advance), report)
            with noting:
                if found:
                    fetched(name)
                else:
                    missing.append(name)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(fetch, targets))
    return missing


def put_files(store: Store, folder: Path, names: list[str], advance: Callable[[int], None]) -> None:
    """Copy files of `folder` to storage; `advance` is called with 1 after each."""

    def put(name: str) -> None:
        retry_storage(lambda: store.put(name, folder / name))

    with ThreadPoolExecutor(PARALLEL) as pool:
        for _ in pool.map(put, names):
            advance(1)


def _reporter(what: str, total_bytes: int, report: Report) -> Callable[[int], None]:
    """Return a function that adds up bytes, from any thread, and reports the sum now and then."""
    done, reported = 0, time.monotonic()
    counting = threading.Lock()

    def advance(size: int) -> None:
        nonlocal done, reported
        with counting:
            done += size
            if time.monotonic() - reported > REPORT_EVERY_S:
                reported = time.monotonic()
                report(f"{what}: {done / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB")

    return advance
