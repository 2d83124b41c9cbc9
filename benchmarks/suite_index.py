"""The index of a large set of TFRecords: the time to load it, and its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, ContenderFailed, clean_environment
from benchmarks.index_probe import SHARDS, write_shards
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, Target, quartiles

LOAD_TARGET = Target("<", 1.0)
MEMORY_TARGET = Target("<=", 64)
RECORDS, FEW_RECORDS = 1_000_000, 2 * SHARDS["train"]
_TIMEOUT_S = 300.0


def probe(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.index_probe", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=clean_environment({}),
            timeout=_TIMEOUT_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        tail = str(getattr(error, "stderr", None) or "").splitlines()[-15:]
        raise ContenderFailed("\n".join([f"{error}; the end of its stderr:", *tail])) from None
    return json.loads(done.stdout.splitlines()[-1])


def measure(settings: Settings, records: int = RECORDS) -> SuiteResult:
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent:
        settings.tell(f"writing {records:,} records")
        small, large = Path(parent, "small"), Path(parent, "large")
        write_shards(small, FEW_RECORDS)
        write_shards(large, records)
        settings.tell("making the index")
        probe("make", str(small))
        made = probe("make", str(large))
        settings.tell("loading the index")
        loaded = probe("load", str(settings.rounds), str(small), str(large))
    more = records - FEW_RECORDS
    figures = [
        Figure(
            f"index of {records:,} records: folder to source",
            quartiles(loaded["load_s"]),
            "s",
            LOAD_TARGET,
        ),
        Figure(
            "index and order, peak memory",
            quartiles([loaded["peak_bytes"] / more]),
            "bytes per record",
            MEMORY_TARGET,
        ),
        Figure(
            "index and order, memory that stays",
            quartiles([loaded["kept_bytes"] / more]),
            "bytes per record",
        ),
        Figure("index made for the first time", quartiles([made["make_s"]]), "s"),
    ]
    notes = [
        f"{SHARDS['train']:,} training shards as in ImageNet, of the smallest records; "
        "the files are in the cache",
        "memory is the growth of the resident size over that of a small set in as many shards, "
        "after the last step of an epoch was read",
    ]
    return SuiteResult("Index of TFRecords", figures, notes)
