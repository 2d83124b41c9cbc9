"""The folder that a conversion writes: its lock, its settings, what is done, and its last files.

While a conversion runs, `.conversion/` keeps the settings and a note of each finished shard.
`dataset.json` is written last and means that all is done. The content of a shard belongs to
`convert`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.errors import UserError
from paceline.experiment.diff import diff
from paceline.formats.tfrecord.shards import LABELS, NOTES, read_notes
from paceline.storage.files import explained, read_json, replacing, write_json
from paceline.storage.lock import FileLock

WORK, REJECTED = ".conversion", "rejected.jsonl"


@contextlib.contextmanager
def exclusive_folder(out: Path) -> Iterator[None]:
    """Keep other processes out of a folder that is new, empty or of an earlier conversion. Remove
    files that an interrupted conversion left half-written."""
    work = out / WORK
    with explained("write", out):
        known = work.exists() or (out / NOTES).exists()
        if out.exists() and not known and any(entry.name[0] != "." for entry in out.iterdir()):
            raise UserError(f"{out} is not empty and has no conversion; give a new folder")
        work.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work / "lock", f"converting into {out}")
    lock.acquire()
    try:
        _remove_unfinished(out)
        yield
        # Spark may end a task because another one has written the same shard.
        _remove_unfinished(out)
        shutil.rmtree(work, ignore_errors=True)
    finally:
        lock.release()


def _remove_unfinished(out: Path) -> None:
    for leftover in list(out.iterdir()):
        if re.fullmatch(r"\.(train|validation)-\d+-of-\d+\..*\.tmp", leftover.name):
            leftover.unlink(missing_ok=True)


def is_done(out: Path, settings: dict[str, Any], console: Console) -> bool:
    """Return whether this conversion is already finished here; else start or continue it. If the
    folder belongs to another conversion, finished or not, raise UserError."""
    plan, settings = out / WORK / "plan.json", json.loads(json.dumps(settings))
    earlier = read_notes(str(out)).get("conversion")
    finished = earlier is not None
    if earlier is None and plan.exists():
        earlier = read_json(plan, "give a new folder")
    if earlier is not None and (changed := diff(earlier, settings)):
        lines = ["the images differ" if line.startswith("pictures:") else line for line in changed]
        advice = "give a new folder, or the old settings to continue"
        raise UserError(f"{out} belongs to another conversion: {', '.join(lines)}; {advice}")
    if finished:
        console.print(f"{out} is already converted", soft_wrap=True)
    elif earlier is None:
        write_json(plan, settings)
    return finished


def is_written(out: Path, shard: str) -> bool:
    return (out / shard).exists() and _note_of(out, shard).exists()


def note_shard(out: Path, shard: str, records: int, rejected: list[dict[str, str]]) -> None:
    """Write the note of a shard. Call it before the shard gets its name, so that a whole shard
    always has its note."""
    write_json(_note_of(out, shard), {"records": records, "rejected": rejected})


def _note_of(out: Path, shard: str) -> Path:
    return out / WORK / f"{shard}.json"


def finish(
    out: Path,
    shards: Sequence[str],
    classes: Sequence[str],
    settings: dict[str, Any],
    keys: dict[str, Any],
    console: Console,
) -> dict[str, Any]:
    """Write labels.txt, the list of rejected images and, last, dataset.json; return its content."""
    notes = [read_json(_note_of(out, shard), "give a new folder") for shard in shards]
    rejected = [line for note in notes for line in note["rejected"]]
    counts = {"train": 0, "validation": 0}
    for shard, note in zip(shards, notes, strict=True):
        counts[shard.split("-")[0]] += note["records"]
    with explained("write", out), replacing(out / LABELS) as file:
        file.write(b"".join(os.fsencode(name) + b"\n" for name in classes))
    if rejected:
        with explained("write", out), replacing(out / REJECTED) as file:
            file.write("".join(json.dumps(line) + "\n" for line in rejected).encode())
    facts = {"classes": len(classes), "records": counts, "rejected": len(rejected)}
    summary = {"format": 1, **keys, **facts, "conversion": settings}
    write_json(out / NOTES, summary)
    found = f"{counts['train']:,} training and {counts['validation']:,} validation images"
    bad = f"; {len(rejected):,} bad images were left out, see {out / REJECTED}" if rejected else ""
    console.print(f"{out} has {found} of {len(classes):,} classes{bad}", soft_wrap=True)
    return summary
