"""Using a run (evaluate, predict, export) in a fresh worker process: the parent's side.

Imports no TensorFlow: its settings must be made before, in a process of its own.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UserError, WorkerFailed
from paceline.experiment.experiment import KERAS
from paceline.experiment.fields import Json
from paceline.experiment.user_code import SAVED_MODEL
from paceline.job import Job, Run
from paceline.messages import Send, Warn
from paceline.requests import UseRun

if TYPE_CHECKING:
    from paceline.run_folder.folder import RunFolder


def check_trust(run: RunFolder, kind: str, trust_code: bool) -> None:
    """Raise UserError if using the run would run code that its config.json names. A run folder can
    come from anybody. Whoever gives `trust_code` has looked at the code."""
    experiment = run.experiment()
    model = experiment.model.build  # a .keras file is loaded without running code
    known = model.endswith(SAVED_MODEL) or model.startswith(KERAS)
    specs = {} if known else {"model.build": model}
    if kind == "evaluate":  # prediction and export do not need the data, but for int8
        specs["data.build"] = experiment.data.build
    if not trust_code and (named := [f"{name} {spec}" for name, spec in specs.items() if spec]):
        raise UserError(
            f"{run.path} runs its own code: {' and '.join(named)}; if you trust this code, "
            "pass --trust-code (in Python trust_code=True)"
        )


def in_a_worker(
    run: RunFolder, request: UseRun, listen: Send = lambda message: None, trust_code: bool = False
) -> Json:
    """Use a run in a worker process, pass its messages to `listen`, and return the result.

    `trust_code` allows code that the run names. The worker's log is kept only if it fails
    unexpectedly; the error then names it.
    """
    from paceline.supervise.group import WorkerGroup
    from paceline.supervise.process import LocalWorker

    needs_data = getattr(request, "quantize", "")
    check_trust(run, "evaluate" if needs_data else request.kind, trust_code)
    _note_unfinished(run, request.checkpoint, listen)
    job = Job(run.experiment(), run=Run(run_dir=str(run.path)), request=request)
    handle, log = tempfile.mkstemp(prefix=f"paceline-{request.kind}-", suffix=".log")
    os.close(handle)
    keeps_log = False
    try:
        with WorkerGroup([LocalWorker(job, Path(log))]) as group:
            return group.run(listen) | {"run_dir": run.where}
    except WorkerFailed:
        keeps_log = True
        raise
    finally:
        if not keeps_log:
            os.unlink(log)


def _note_unfinished(run: RunFolder, checkpoint: str, listen: Send) -> None:
    result = None
    try:
        result = run.read_result()
    except UserError as error:  # the checkpoints have digests of their own
        listen(Warn(str(error)))
    if not (result and result.get("finished")) and checkpoint in ("best", "last"):
        chosen = checkpoint if run.experiment().data.validation else "last"
        listen(Warn(f"{run.where} is not finished; this is its {chosen} checkpoint so far"))
