"""Runs the trials of a search on Ray Tune, which starts them and stops the worse ones.

Nothing is read from Tune's own files: run folders and `search.json` say which trials are done. A
search that continues gives Tune the other trials, and Tune compares these with each other.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from paceline.engines_more.object_store.ray_cluster import connect_to_ray, resources_of
from paceline.errors import Interrupted, UserError
from paceline.extras.search.options import SearchPlan, Trial
from paceline.extras.search.search_folder import SearchFolder
from paceline.extras.search.trainable import TrialOnRay
from paceline.job import Job
from paceline.storage.locations import is_remote

Tell = Callable[[str], None]

TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # most calls of a trial report nothing new
    "RAY_AIR_NEW_OUTPUT": "0",
}
MAX_FAILURES = 3
"""How often a trial is started again after its node or actor was lost."""


def run_trials(
    plan: SearchPlan, trials: Sequence[Trial], folder: SearchFolder, tell: Tell
) -> list[str]:
    """Train these trials of a search; return the reasons why some failed unexpectedly.

    Raises UserError for what stops all trials, and Interrupted after a signal.
    """
    watch = Watch(plan, folder, tell)
    starts_ray = not ray.is_initialized()
    if starts_ray:
        connect_to_ray(_whole_trial(plan))
    try:
        with (
            _quiet_tune(),
            _signals(watch),
            tempfile.TemporaryDirectory(prefix="paceline-search-") as scratch,
        ):
            _fit(plan, trials, watch, scratch)
    finally:
        if starts_ray:
            ray.shutdown()
    if watch.refused:
        raise UserError(watch.refused)
    if watch.signal:
        raise Interrupted(watch.signal)
    return watch.crashed


def _fit(plan: SearchPlan, trials: Sequence[Trial], watch: Watch, scratch: str) -> None:
    wanted = resources_of(_whole_trial(plan), "a trial")
    resources = {"cpu": wanted["num_cpus"], "gpu": wanted["num_gpus"]}
    configs = [
        {
            "name": trial.name,
            "folder": os.getcwd(),
            "search_dir": _absolute(plan.where),
            "metric": plan.options.metric,
            "job": replace(
                trial.job, run=replace(trial.job.run, run_dir=_absolute(trial.run_dir))
            ).to_json(),
        }
        for trial in trials
    ]
    tune.Tuner(
        tune.with_resources(TrialOnRay, resources),
        param_space={"trial": tune.grid_search(configs)},
        tune_config=tune.TuneConfig(
            scheduler=_scheduler(plan), max_concurrent_trials=plan.options.max_concurrent or None
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=scratch,
            verbose=0,
            stop=watch,
            callbacks=[watch],
            failure_config=tune.FailureConfig(max_failures=MAX_FAILURES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs have their own
        ),
    ).fit()


def _absolute(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _whole_trial(plan: SearchPlan) -> Job:
    """Return a job whose one worker needs what all processes of a trial need."""
    place = plan.place
    processes = place.workers + place.ps + bool(place.ps)
    needed = replace(
        place.ray,
        cpus_per_worker=place.ray.cpus_per_worker * processes,
        gpus_per_worker=place.ray.gpus_per_worker * place.workers,
    )
    whole = replace(place, on="ray", workers=1, ps=0, min_workers=0, ray=needed)
    return replace(plan.trials[0].job, place=whole)


def _scheduler(plan: SearchPlan) -> Any:
    options = plan.options
    if options.scheduler == "none":
        return FIFOScheduler()
    return ASHAScheduler(
        time_attr="progress",
        metric=plan.metric,
        mode="max" if options.metric == "accuracy" else "min",
        max_t=1.0,
        grace_period=options.grace,
        reduction_factor=options.reduction,
        stop_last_trials=False,  # they end by themselves, after their result is written
    )


class Watch(tune.Callback, tune.Stopper):
    """Prints what Tune reports, stores which trials were stopped or failed, and can end all."""

    def __init__(self, plan: SearchPlan, folder: SearchFolder, tell: Tell) -> None:
        self.signal = 0
        self.refused = ""
        """Why no trial can be trained."""
        self.crashed: list[str] = []
        self._folder, self._tell = folder, tell
        self._trials = {trial.name: trial for trial in plan.trials}

    def stop_all(self) -> bool:
        """Return whether all trials must stop."""
        return bool(self.signal or self.refused)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self.stop_all()

    def on_trial_start(self, trial: Any, **_: Any) -> None:
        self._say(trial, "starts")

    def on_trial_result(self, trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Print an evaluation, or store why a trial failed."""
        ours = self._trial(trial)
        if reason := result.get("refused"):
            if result.get("started"):  # such as a loss that is not finite: always the same
                self._folder.failed[ours.name] = reason
                self._folder.save()
                self._say(trial, f"failed: {reason}")
            else:
                self.refused = self.refused or f"trial {ours.number}: {reason}"
        elif reason := result.get("crashed"):
            self.crashed.append(f"trial {ours.number}: {reason}")
            self._say(trial, f"failed: {reason}")
        elif "epoch" in result:
            accuracy, loss = result["accuracy"], result["loss"]
            at = f"epoch {result['epoch']:.4g} ({result['progress']:.0%})"
            self._say(trial, f"{at}  validation accuracy {accuracy:.4f}  loss {loss:.4f}")

    def on_trial_complete(self, trial: Any, **_: Any) -> None:
        """Store that the scheduler stopped a trial, unless it ended by itself."""
        last = trial.last_result or {}
        if self.stop_all() or "finished" in last or "step" not in last:
            return
        self._folder.stopped[self._trial(trial).name] = last["step"]
        self._folder.save()
        self._say(trial, f"stopped after {last['progress']:.0%}: most others were better by then")

    def on_trial_error(self, trial: Any, **_: Any) -> None:
        """Remember a trial whose actor was lost too often."""
        reason = str(trial.get_error() or "its actor was lost").strip().splitlines()[-1]
        self.crashed.append(f"trial {self._trial(trial).number}: {reason}")

    def interrupt(self, number: int, _: Any) -> None:
        """Let all trials save and end; the second time, end at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number

    def _trial(self, trial: Any) -> Trial:
        return self._trials[trial.config["trial"]["name"]]

    def _say(self, trial: Any, text: str) -> None:
        ours = self._trial(trial)
        self._tell(f"trial {ours.number}/{len(self._trials)}  {ours.words}: {text}")


@contextmanager
def _quiet_tune() -> Iterator[None]:
    """Set what Tune reads from the environment, and silence its logger."""
    before = {name: os.environ[name] for name in TUNE_SETTINGS if name in os.environ}
    logger = logging.getLogger("ray.tune")
    level = logger.level
    os.environ.update(TUNE_SETTINGS)
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in TUNE_SETTINGS:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _signals(watch: Watch) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the search, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    old = {number: signal.signal(number, watch.interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
