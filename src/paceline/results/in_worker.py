"""Using a run (evaluate, predict, export) in a fresh worker process: the parent's and its side.

Imports no TensorFlow: its settings must be made before, in a process of its own.
"""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.job import Job, Run
from paceline.messages import Message, Send, Warn

if TYPE_CHECKING:
    from paceline.run_folder.folder import RunFolder

KINDS = {
    "evaluate": "paceline.results.evaluate",
    "predict": "paceline.results.predict_files",
    "export": "paceline.results.export",
}
"""Kind of a job -> the module whose `run_job(job, send)` does it and returns the result."""


def in_a_worker(
    kind: Any, run: RunFolder, request: dict[str, Any], listen: Send = lambda message: None
) -> dict[str, Any]:
    """Use a run in a worker process, pass its messages to `listen`, and return the result.

    The worker's log is kept only if it fails unexpectedly; the error then names it.
    """
    from paceline.places.failures import WorkerFailed
    from paceline.places.process_group import Group, forwarded_signals

    result, checkpoint = run.read_result(), request.get("checkpoint")
    if not (result and result.get("finished")) and checkpoint in ("best", "last"):
        listen(Warn(f"{run.path} is not finished; this is its {checkpoint} checkpoint so far"))
    job = Job(run.experiment(), run=Run(run_dir=str(run.path)), kind=kind, request=request)
    handle, log = tempfile.mkstemp(prefix=f"paceline-{kind}-", suffix=".log")
    os.close(handle)
    group = Group([job], [Path(log)])
    errors: list[Exception] = []

    def listen_and_note_errors(message: Message) -> None:
        try:
            listen(message)
        except Exception as error:  # such as a closed standard output
            errors.append(error)
            raise

    try:
        with forwarded_signals(group), group:
            outcome = group.run(listen_and_note_errors)
    except WorkerFailed:
        if not errors:
            raise
        os.unlink(log)
        raise errors[0] from None
    except BaseException:
        os.unlink(log)
        raise
    os.unlink(log)
    return outcome


def use_run(job: Job, send: Send) -> dict[str, Any]:
    """Do the work of such a job in this worker; return the result."""
    result: dict[str, Any] = import_module(KINDS[job.kind]).run_job(job, send)
    return result
