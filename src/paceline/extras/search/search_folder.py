"""The search folder: `search.json`, the page, and a run folder for each trial.

`search.json` says which search it is, and which trials ended before their last step: those that
the scheduler stopped, and those that failed. Everything else is in the run folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.experiment.fields import diff
from paceline.extras.search.options import SearchPlan
from paceline.extras.search.space import describe
from paceline.storage.files import explained, replacing, sealed, unsealed
from paceline.storage.locations import is_remote
from paceline.storage.lock import FileLock
from paceline.storage.remote import open_to_write

RECORD, PAGE = "search.json", "search.html"


class SearchFolder:
    """The files of one search. Building one touches neither disk nor network."""

    def __init__(self, plan: SearchPlan) -> None:
        self.where = plan.where
        self.page = f"{self.where}/{PAGE}"
        self.stopped: dict[str, int] = {}
        """Runs that the scheduler stopped, and the step that decided it."""
        self.failed: dict[str, str] = {}
        """Runs that cannot be trained to their end, and why."""
        self._facts = {
            "recipe": plan.recipe,
            "experiment": plan.experiment.to_json(),
            "over": sorted(describe(plan.space)),
            "method": plan.options.method,
        }

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder, or check that it is of this search. Lock it if it is local."""
        with nullcontext() if is_remote(self.where) else self._locked():
            self._check(self._read())
            self.save()
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = Path(self.where)
        with explained("make", folder):
            folder.mkdir(parents=True, exist_ok=True)
        if not (folder / RECORD).exists() and any(f.name != "lock" for f in folder.iterdir()):
            raise UserError(
                f"{self.where} is not a search folder: it contains files but no {RECORD}; use a "
                "new or empty --search-dir"
            )
        lock = FileLock(folder / "lock", f"searching in {self.where}")
        lock.acquire(wait_s=10.0)  # the processes of a killed search may need a moment to exit
        try:
            yield
        finally:
            lock.release()

    def save(self) -> None:
        """Write search.json, complete or not at all."""
        record = sealed(self._facts | {"stopped": self.stopped, "failed": self.failed})
        self._write(RECORD, json.dumps(record, indent=2))

    def write_page(self, content: str) -> None:
        """Write the page."""
        self._write(PAGE, content)

    def _write(self, name: str, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        if is_remote(self.where):
            open_to_write(self.where).put(name, data)
            return
        path = Path(self.where, name)
        with explained("write", path), replacing(path) as file:
            file.write(data)

    def _read(self) -> dict[str, Any]:
        """Return the content of search.json; empty if there is none."""
        path = Path(self.where, RECORD)
        try:
            if is_remote(self.where):
                content = open_to_write(self.where).read(RECORD)
            else:
                content = path.read_bytes() if path.exists() else None
            return unsealed(json.loads(content)) if content else {}
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(
                f"{self.where}/{RECORD} cannot be read ({error}); restore it from a copy, or use a "
                "different --search-dir"
            ) from error

    def _check(self, record: dict[str, Any]) -> None:
        """Take over what is known of the trials; raise UserError if it is of another search."""
        if not record:
            return
        old = {name: record.get(name) for name in self._facts}
        new = json.loads(json.dumps(self._facts))
        if changes := diff(old, new):
            raise UserError(
                f"{self.where} contains a different search: {'; '.join(changes[:4])}; use another "
                "--search-dir"
            )
        self.stopped = dict(record.get("stopped") or {})
        self.failed = dict(record.get("failed") or {})
