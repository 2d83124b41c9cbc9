"""Convert CIFAR and folders of images to sharded TFRecords with ImageNet's names and keys.

Images are stored unchanged. The same inputs give the same bytes on any number of processes: the
order is that of a hash of each path. A shard gets its final name only when it is complete, so an
interrupted conversion continues with the shards that are missing. Meanwhile, `.conversion/` keeps
what identifies the conversion, and which images of a shard are bad. `dataset.json` is written last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.errors import UserError
from paceline.formats.conversion_plan import Conversion, ConvertSettings, ShardJob, plan_conversion
from paceline.formats.pool import RunJobs, Tick, run_jobs
from paceline.formats.tfrecord.frames import framed
from paceline.formats.tfrecord.shards import LABELS, NOTES, read_notes
from paceline.storage.cache import put_folder
from paceline.storage.files import explained, read_json, replacing, write_json
from paceline.storage.locations import cached, is_remote
from paceline.storage.lock import FileLock
from paceline.storage.remote import open_to_write

WORK, REJECTED = ".conversion", "rejected.jsonl"


def convert(
    src: str | Path,
    out: str | Path,
    settings: ConvertSettings | None = None,
    run: RunJobs = run_jobs,
    console: Console | None = None,
) -> dict[str, Any]:
    """Convert `src` into the folder or URL `out`; return the content of its dataset.json.

    `run` runs the jobs that write shards of images, in processes or on a cluster.
    """
    settings, console = settings or ConvertSettings(), console or Console(stderr=True)
    if is_remote(str(out)):
        return _convert_remote(src, str(out), settings, run, console)
    folder, target = Path(src).expanduser(), Path(out).expanduser().absolute()
    with _exclusive_folder(target):
        conversion = plan_conversion(folder, settings)
        if _is_finished(target, conversion.identity, console):
            return read_notes(str(target))
        if conversion.is_quick:
            run = partial(run_jobs, processes=1)
        _write_missing(conversion.jobs, target, run, console)
        return _finish(target, conversion, console)


def _convert_remote(
    src: str | Path, url: str, settings: ConvertSettings, run: RunJobs, console: Console
) -> dict[str, Any]:
    """Convert into the cache and copy the result to `url`, dataset.json last."""
    here = cached("converted", url)
    if not here.exists() and open_to_write(url).files():
        raise UserError(f"{url} is not empty; give a new folder")
    summary = convert(src, here, settings, run, console)
    put_folder(here, url, NOTES)
    shutil.rmtree(here)
    return summary


def work_folder(out: str) -> Path:
    """Return the folder in which a conversion into the folder or URL `out` keeps its notes."""
    folder = cached("converted", out) if is_remote(out) else Path(out).expanduser().absolute()
    return folder / WORK


@contextlib.contextmanager
def _exclusive_folder(out: Path) -> Iterator[None]:
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


def _is_finished(out: Path, identity: dict[str, str], console: Console) -> bool:
    """Return whether this conversion is already finished here; else start or continue it. If the
    folder belongs to a different conversion, raise UserError."""
    plan = out / WORK / "plan.json"
    finished = read_notes(str(out)).get("conversion")
    earlier = finished or (read_json(plan, "give a new folder") if plan.exists() else None)
    if earlier not in (None, identity):
        advice = "give a new folder, or the same images and settings to continue"
        raise UserError(f"{out} has a conversion of different images or settings; {advice}")
    if finished:
        console.print(f"{out} is already converted", soft_wrap=True)
    elif earlier is None:
        write_json(plan, identity)
    return bool(finished)


def _write_missing(jobs: Sequence[ShardJob], out: Path, run: RunJobs, console: Console) -> None:
    waiting = [job for job in jobs if not (out / job.name).exists()]
    if len(waiting) < len(jobs):
        done = f"{len(jobs) - len(waiting)} of {len(jobs)} shards are already written"
        console.print(f"continuing: {done}", soft_wrap=True)
    total = sum(len(job.examples) for job in waiting)
    for _ in run(partial(_write_shard, out), waiting, "converting", total, console):
        pass


def _write_shard(out: Path, job: ShardJob, tick: Tick) -> None:
    """Write one shard. The list of its bad images is written before the shard gets its name."""
    path, rejected = out / job.name, []
    with explained("write", path), replacing(path) as file:
        for each in job.examples:
            tick(1)
            try:
                file.write(framed(job.encode(each)))
            except ValueError as error:
                rejected.append({"file": each.path, "shard": job.name, "reason": str(error)})
        if len(rejected) == len(job.examples):
            found = f"all {len(rejected)} images for {job.name} are bad, such as {rejected[0]}"
            raise UserError(f"{found}; give fewer shards")
        write_json(_note_of(out, job), {"rejected": rejected})


def _note_of(out: Path, job: ShardJob) -> Path:
    return out / WORK / f"{job.name}.json"


def _finish(out: Path, conversion: Conversion, console: Console) -> dict[str, Any]:
    """Write labels.txt, the list of rejected images and, last, dataset.json; return its content."""
    rejected, counts = [], {"train": 0, "validation": 0}
    for job in conversion.jobs:
        bad = read_json(_note_of(out, job), "give a new folder")["rejected"]
        counts[job.name.split("-")[0]] += len(job.examples) - len(bad)
        rejected += bad
    classes = conversion.classes
    with explained("write", out), replacing(out / LABELS) as file:
        file.write(b"".join(os.fsencode(name) + b"\n" for name in classes))
    if rejected:
        with explained("write", out), replacing(out / REJECTED) as file:
            file.write("".join(json.dumps(line) + "\n" for line in rejected).encode())
    facts = {"classes": len(classes), "records": counts, "rejected": len(rejected)}
    summary = {"format": 1, **conversion.keys, **facts, "conversion": conversion.identity}
    write_json(out / NOTES, summary)
    found = f"{counts['train']:,} training and {counts['validation']:,} validation images"
    left_out = f"; {len(rejected):,} bad images were left out, see {out / REJECTED}"
    message = f"{out} has {found} of {len(classes):,} classes{left_out if rejected else ''}"
    console.print(message, soft_wrap=True)
    return summary
