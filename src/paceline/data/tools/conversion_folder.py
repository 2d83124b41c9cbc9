"""The folder that a conversion writes: who may write it, which conversion it belongs to, what is done, and its last files.

`.conversion/` keeps the plan and a note of each finished shard for as long as the conversion is under way; `dataset.json`
comes last and says that all is done. What is in a shard belongs to `convert`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.config.experiment import differences
from paceline.data.sources.shards import LABELS, NOTES, read_notes
from paceline.errors import UserError
from paceline.run_folder.folder import explained, replacing, write_json

WORK, REJECTED = ".conversion", "rejected.jsonl"


@contextlib.contextmanager
def working_in(out: Path) -> Iterator[None]:
    """Alone in a folder that is new, empty or of an earlier conversion; what a cut-off one left half-written is removed."""
    work = out / WORK
    with explained("write", out):
        known = work.exists() or (out / NOTES).exists()
        if (
            out.exists()
            and not known
            and any(not entry.name.startswith(".") for entry in out.iterdir())
        ):
            raise UserError(
                f"{out} is not empty and no conversion is under way in it; give a new folder"
            )
        work.mkdir(parents=True, exist_ok=True)
        handle = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(handle, out)
        _remove_unfinished(out)
        yield
        _remove_unfinished(
            out
        )  # of processes that were ended because another had written the same shard
        shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(handle)


def _remove_unfinished(out: Path) -> None:
    for leftover in list(out.iterdir()):
        if re.fullmatch(r"\.(train|validation)-\d+-of-\d+\..*\.tmp", leftover.name):
            leftover.unlink(missing_ok=True)


def is_done(out: Path, settings: dict[str, Any], console: Console) -> bool:
    """Whether the same conversion was finished here; another one, finished or not, is an error. Else it begins, or goes on."""
    plan, settings = out / WORK / "plan.json", json.loads(json.dumps(settings))
    earlier = read_notes(str(out)).get("conversion")
    finished = earlier is not None
    if earlier is None and plan.exists():
        with explained("read", plan):
            earlier = json.loads(plan.read_text())
    if earlier is not None and (changed := differences(earlier, settings)):
        what = ", ".join(
            "the pictures are not the same" if line.startswith("pictures:") else line
            for line in changed
        )
        raise UserError(
            f"{out} belongs to another conversion: {what}; give a new folder, or the old settings to go on"
        )
    if finished:
        console.print(f"{out} is already converted", soft_wrap=True)
    elif earlier is None:
        write_json(plan, settings)
    return finished


def is_written(out: Path, shard: str) -> bool:
    return (out / shard).exists() and _note_of(out, shard).exists()


def note_shard(out: Path, shard: str, records: int, rejected: list[dict[str, str]]) -> None:
    """To be called before the shard gets its name, so that a whole shard always has its note."""
    write_json(_note_of(out, shard), {"records": records, "rejected": rejected})


def finish(
    out: Path,
    shards: Sequence[str],
    classes: Sequence[str],
    settings: dict[str, Any],
    keys: dict[str, Any],
    console: Console,
) -> dict[str, Any]:
    """Write class names, what was left out and last dataset.json, and give its content."""
    with explained("read", out):
        notes = [json.loads(_note_of(out, shard).read_text()) for shard in shards]
    rejected = [line for note in notes for line in note["rejected"]]
    counts = {"train": 0, "validation": 0}
    for shard, note in zip(shards, notes, strict=True):
        counts[shard.split("-")[0]] += note["records"]
    with explained("write", out), replacing(out / LABELS) as file:
        file.write(b"".join(os.fsencode(name) + b"\n" for name in classes))
    if rejected:
        with explained("write", out), replacing(out / REJECTED) as file:
            file.write("".join(json.dumps(line) + "\n" for line in rejected).encode())
    summary = {
        "format": 1,
        **keys,
        "classes": len(classes),
        "records": counts,
        "rejected": len(rejected),
        "conversion": settings,
    }
    write_json(out / NOTES, summary)
    bad = (
        f"; {len(rejected):,} bad pictures were left out, see {out / REJECTED}" if rejected else ""
    )
    counted = f"{counts['train']:,} training and {counts['validation']:,} validation pictures of {len(classes):,} classes"
    console.print(f"{out} has {counted}{bad}", soft_wrap=True)
    return summary


def _note_of(out: Path, shard: str) -> Path:
    return out / WORK / f"{shard}.json"


def _lock(handle: int, out: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(
            f"another process is converting into {out}; wait until it ends, or stop it"
        ) from None
