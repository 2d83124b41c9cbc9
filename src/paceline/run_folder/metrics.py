"""What a run measures, as files: records by step (metrics.jsonl and others) and predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.run_folder.files import explained, plain, read_text, replacing


class Records:
    """A file with one JSON object per line, each with its `step`. Building it touches no disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        """Add one line."""
        line = json.dumps(plain(record), allow_nan=False) + "\n"
        with explained("write", self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(line)

    def read(self) -> list[dict[str, Any]]:
        """Return all whole lines; the last may be half written by a training under way."""
        return _parse(read_text(self.path))

    def truncate(self, step: int) -> None:
        """Remove what is after `step`, where training continues, and a line cut off by a crash."""
        text = read_text(self.path)
        kept = "".join(
            json.dumps(record) + "\n" for record in _parse(text) if record["step"] <= step
        )
        if kept != text:
            with explained("write", self.path), replacing(self.path) as file:
                file.write(kept.encode())


class Predictions:
    """evaluation.npz: the prediction for each example of the last evaluation, and images of the
    worst mistakes. Building it touches no disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, arrays: dict[str, Any]) -> None:
        """Replace the file by these arrays."""
        import numpy as np

        with explained("write", self.path), replacing(self.path) as file:
            np.savez_compressed(file, **arrays)

    def read(self) -> dict[str, Any] | None:
        """Return the arrays; None if there are none, or none that are whole."""
        import zipfile

        import numpy as np

        try:
            with np.load(self.path) as arrays:
                return dict(arrays)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return None


def _parse(text: str) -> list[dict[str, Any]]:
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records
