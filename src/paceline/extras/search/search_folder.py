"""The folder of a search: `search.json`, the page, and a run folder for each trial.

`search.json` says which search it is, and which trials ended before their last step: those that
the scheduler stopped, and those that failed. Everything else is in the run folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.experiment.dataclass_json import differences
from paceline.extras.search.options import Search
from paceline.extras.search.space import describe
from paceline.storage.backends import Store, is_remote
from paceline.storage.files import explained, read_json, replacing, sealed, unsealed, write_json
from paceline.storage.lock import FileLock

FORMAT = 1
RECORD, PAGE = "search.json", "search.html"
ADVICE = "restore it from a copy, or use another --search-dir"


class SearchFolder:
    """The files of one search. Building one touches neither disk nor network."""

    def __init__(self, search: Search) -> None:
        self.where = search.where
        self.stopped: dict[str, int] = {}
        """Runs that the scheduler stopped, and the step that decided it."""
        self.failed: dict[str, str] = {}
        """Runs that cannot be trained to their end, and why."""
        self._store = Store(self.where) if is_remote(self.where) else None
        self._path = Path(self.where)
        self._facts = {
            "format": FORMAT,
            "recipe": search.recipe,
            "experiment": search.experiment.to_json(),
            "over": sorted(describe(search.space)),
            "method": search.options.method,
        }

    @property
    def page(self) -> str:
        """Return where the page is."""
        return f"{self.where}/{PAGE}"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder, or check that it is of this search. Keep other commands out."""
        if self._store:
            self._read(self._store.read(RECORD))
            self.save()
            yield
            return
        with explained("make", self._path):
            self._path.mkdir(parents=True, exist_ok=True)
        record = self._path / RECORD
        if not record.exists() and any(each.name != "lock" for each in self._path.iterdir()):
            raise UserError(
                f"{self.where} is not the folder of a search: it has files but no {RECORD}; use a "
                "new or empty --search-dir"
            )
        lock = FileLock(self._path / "lock", f"searching in {self.where}")
        lock.acquire(wait_s=10.0)  # the processes of a killed search may need a moment to end
        try:
            self._check(read_json(record, ADVICE, FORMAT) if record.exists() else None)
            self.save()
            yield
        finally:
            lock.release()

    def save(self) -> None:
        """Write search.json, whole or not at all."""
        record = sealed(self._facts | {"stopped": self.stopped, "failed": self.failed})
        if self._store:
            self._store.put(RECORD, json.dumps(record).encode())
        else:
            write_json(self._path / RECORD, record)

    def write_page(self, content: str) -> None:
        """Write the page."""
        data = content.encode(errors="backslashreplace")
        if self._store:
            self._store.put(PAGE, data)
            return
        with explained("write", self._path / PAGE), replacing(self._path / PAGE) as file:
            file.write(data)

    def _read(self, content: bytes | None) -> None:
        try:
            self._check(unsealed(json.loads(content)) if content else None)
        except ValueError as error:
            raise UserError(f"{self.where}/{RECORD} is damaged ({error}); {ADVICE}") from error

    def _check(self, record: dict[str, Any] | None) -> None:
        """Take over what is known of the trials; raise UserError if it is of another search."""
        if record is None:
            return
        old = {name: record.get(name) for name in self._facts}
        if changes := differences(plain_text(old), plain_text(self._facts)):
            raise UserError(
                f"{self.where} has another search: {'; '.join(changes[:4])}; use another "
                "--search-dir"
            )
        self.stopped = dict(record.get("stopped") or {})
        self.failed = dict(record.get("failed") or {})


def plain_text(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as JSON gives them back."""
    plain: dict[str, Any] = json.loads(json.dumps(facts))
    return plain
