"""The story of a command: a job -> its place -> workers -> their messages -> the result.

Read `launch` first. A module of `places` says where the workers run; `places.supervise` starts
them, listens to them and ends them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from paceline.job import Job
from paceline.messages import Saved, Send, Warn
from paceline.place_kinds import PlaceName
from paceline.places.supervise.failures import RoomForAll
from paceline.places.supervise.group import Group
from paceline.places.supervise.open_place import OpenPlace
from paceline.places.supervise.restarts import FAILURES, History, decide
from paceline.places.supervise.signals import forwarded_signals


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run a job to its end, with restarts, and return the chief's result.

    `listen` gets the messages of the workers. Raises UserError, WorkerFailed or Interrupted.
    """
    if job.place.on == "auto":
        job = replace(job, place=replace(job.place, on=find_place(os.environ)))
    module = import_module(job.place.kind.module)
    with module.open_place(job, listen) as opened:
        history = History(opened.job.place.workers)
        while True:
            try:
                with opened.workers(history.workers) as workers:
                    group = Group(workers)
                    with forwarded_signals(group), group:
                        return _follow(group, opened, history, listen)
            except FAILURES as failure:
                restart = decide(history, opened.job.place, failure)
                if restart is None:
                    raise
            listen(Warn(restart.warning))
            time.sleep(restart.pause_s)
            history = restart.history


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


def _follow(group: Group, opened: OpenPlace, history: History, listen: Send) -> dict[str, Any]:
    """Pass the messages of one attempt on until its workers have ended; return the result.

    If there are fewer workers than wanted, they leave at a checkpoint when there is room for all.
    """
    wanted, checkpoints = opened.job.place.workers, 0
    for message in group.relay(opened.listener(listen)):
        if not isinstance(message, Saved) or history.workers == wanted or group.leaving:
            continue
        checkpoints += 1
        is_due = checkpoints >= history.checkpoints_apart and message.step < group.total_steps
        if is_due and opened.has_room(wanted):
            group.leave()
    if group.leaving:
        raise RoomForAll
    return group.result()
