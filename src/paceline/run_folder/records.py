"""What a run measures, as records by step: metrics.jsonl and others."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from paceline.experiment.fields import Json
from paceline.storage.files import explained, read_text, replacing, run_file, sealed, unsealed

Guard = Callable[[], None]
"""Raises LeaseLost if another process has taken over the run."""


class RecordFile:
    """Lines of JSON, each with its `step` and a checksum; a crash can cut off the last one."""

    def __init__(self, path: Path, guard: Guard = lambda: None) -> None:
        self.path = path
        self._guard = guard

    def append(self, record: Json) -> None:
        """Add one line."""
        self._guard()
        with explained("write", self.path), open(self.path, "ab+", opener=run_file) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                file.write(b"" if file.read() == b"\n" else b"\n")
            file.write(_to_line(record).encode())

    def read(self) -> list[Json]:
        """Return all whole lines; the last may be half written by a training under way."""
        return _parse(read_text(self.path, run_file))[0]

    def num_damaged(self) -> int:
        """Return how many lines are not what was once written. `read` leaves them out."""
        return _parse(read_text(self.path, run_file))[1]

    def truncate(self, step: int, change: Callable[[Json], Json] = lambda record: record) -> int:
        """Remove what is after `step`, `change` the rest; return how many damaged lines went."""
        text = read_text(self.path, run_file)
        records, num_damaged = _parse(text)
        kept = "".join(_to_line(change(record)) for record in records if record["step"] <= step)
        if kept != text:
            self._guard()
            with explained("write", self.path), replacing(self.path) as file:
                file.write(kept.encode())
        return num_damaged


def _to_line(record: Json) -> str:
    return json.dumps(sealed(record), allow_nan=False) + "\n"


def _parse(text: str) -> tuple[list[Json], int]:
    """Return the good records, and the number of damaged lines but for an unfinished last one."""
    records, num_damaged = list[Json](), 0
    for line in text.splitlines(keepends=True):
        try:
            record = unsealed(json.loads(line))
            if type(record["step"]) is not int or not 0 <= record["step"] < 10**15:
                raise ValueError("it has no step")
            records.append(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            num_damaged += line.endswith("\n")
    return records, num_damaged
