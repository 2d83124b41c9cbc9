"""Using a run (evaluate, predict, export) in a fresh worker process: what the parent starts, and what the worker then calls.

It imports no TensorFlow: its settings must be made before, in a process of its own.
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
    "predict": "paceline.results.predict",
    "export": "paceline.results.export",
}
"""Kind of a job -> the module whose `serve(job, send)` does it and gives the result."""


def in_a_worker(
    kind: Any, run: RunFolder, request: dict[str, Any], listen: Send = lambda message: None
) -> dict[str, Any]:
    """Do it in a worker process; its messages go to `listen`. Its log is kept, and named, only where it fails unforeseen."""
    from paceline.places.failures import WorkerFailed
    from paceline.places.process_group import Group, forwarded_signals

    result = run.read_result()
    if not (result and result.get("finished")) and request.get("checkpoint") in ("best", "last"):
        checkpoint = request["checkpoint"]
        listen(Warn(f"{run.path} is not finished; this is its {checkpoint} checkpoint so far"))
    job = Job(run.experiment(), run=Run(run_dir=str(run.path)), kind=kind, request=request)
    handle, log = tempfile.mkstemp(prefix=f"paceline-{kind}-", suffix=".log")
    os.close(handle)
    group, objections = Group([job], [Path(log)]), list[Exception]()

    def listen_or_object(message: Message) -> None:
        try:
            listen(message)
        except Exception as error:  # such as a reader of our output that has gone
            objections.append(error)
            raise

    try:
        with forwarded_signals(group), group:
            outcome = group.run(listen_or_object)
    except WorkerFailed:
        if not objections:
            raise
        os.unlink(log)
        raise objections[0] from None
    except BaseException:
        os.unlink(log)
        raise
    os.unlink(log)
    return outcome


def use_run(job: Job, send: Send) -> dict[str, Any]:
    """The worker's side."""
    return import_module(KINDS[job.kind]).serve(job, send)
