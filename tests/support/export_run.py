"""Exports a run in this process, as the worker process of the command does."""

from __future__ import annotations

from pathlib import Path

from paceline.job import Job, Run
from paceline.requests import ExportRequest
from paceline.results.export import answer
from paceline.run_folder.folder import RunFolder


def export(run: RunFolder, out: Path, to: str, serving: bool) -> list[str]:
    """Export a run; return the warnings."""
    notes: list[str] = []
    request = ExportRequest(str(out), to, serving)
    job = Job(run.experiment(), run=Run(run_dir=str(run.path)))
    done = answer(job, request, lambda message: notes.append(message.text))
    assert done["out"] == str(out)
    return notes
