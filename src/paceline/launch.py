"""The story of a command: a job -> its place -> workers -> their messages -> the result.

Read `launch` first. A module of `places` says where the workers run; `supervise` starts them,
listens to them and ends them.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from paceline.errors import UserError, WorkerFailed
from paceline.experiment.fields import Json
from paceline.job import Job, PlaceName
from paceline.messages import Send, Warn
from paceline.supervise.group import WorkerGroup
from paceline.supervise.restarts import Attempt, decide


def launch(job: Job, listen: Send) -> Json:
    """Run a job to its end, with restarts, and return the chief's result.

    `listen` gets the messages of the workers. Raises UserError, WorkerFailed or Interrupted.
    """
    if job.place.on == "auto":
        job = replace(job, place=replace(job.place, on=find_place(os.environ)))
    module = import_module(job.place.kind.module)
    with module.open_place(job, listen) as opened:
        attempt = Attempt(opened.job.place.workers)
        while True:
            try:
                with opened.workers(attempt.workers) as workers, WorkerGroup(workers) as group:
                    return group.run(opened.listen)
            except (UserError, WorkerFailed) as failure:
                again = decide(attempt, opened.job.place, failure)
                if again is None:
                    raise
            attempt = again
            listen(Warn(attempt.warning))
            time.sleep(attempt.pause_s)


def find_place(environment: Mapping[str, str]) -> PlaceName:
    """Return the place that environment variables show: a platform's task, or else this machine."""
    if environment.get("TF_CONFIG"):
        return "tf_config"
    if "JOB_COMPLETION_INDEX" in environment and "PACELINE_SERVICE" in environment:
        return "kubernetes"
    # a batch script, and a step of one task, are ordinary shells
    if "SLURM_STEP_ID" in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return "slurm"
    return "local"
