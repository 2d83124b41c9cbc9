"""Runs the trials of a search on Ray Tune, which starts them, compares them and stops the worse.

What has happened is in the run folders and in `search.json`, not in Tune's own files: these are
pickles, do not have what the scheduler knew, and are written every few seconds only. So a search
that is started again gives Tune the trials that are not done, and the scheduler what the others
reached.
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
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from paceline.errors import UserError
from paceline.extras.search.options import Search, Trial, absolute
from paceline.extras.search.search_folder import SearchFolder
from paceline.extras.search.trials import TrialSummary
from paceline.job import Place
from paceline.places.supervise.failures import Interrupted

Tell = Callable[[str], None]

NEEDED = ("ray", "pandas", "pyarrow", "requests")
"""What `ray[tune]` installs and Tune imports."""
TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # most calls of a trial report nothing new
    "RAY_AIR_NEW_OUTPUT": "0",
}
MAX_FAILURES = 3
"""How often a trial is started again whose node or actor is lost."""


def check_ray() -> None:
    """Raise UserError if Ray Tune is not installed."""
    if missing := [name for name in NEEDED if not find_spec(name)]:
        raise UserError(
            f"a search needs Ray Tune, and {missing[0]} is not installed; install it with "
            "pip install 'paceline[search]'"
        )


def run_trials(
    search: Search, folder: SearchFolder, known: Sequence[TrialSummary], tell: Tell
) -> list[str]:
    """Train all trials that are not done; return the reasons why others failed unexpectedly.

    Raises UserError for what stops all trials, and Interrupted after a signal.
    """
    done = {each.run_dir for each in known if is_done(search, each)}
    left = [trial for trial in search.trials if trial.run_dir not in done]
    if not left:
        return []
    check_ray()
    from paceline.engines_more.object_store.ray_cluster import connect_to_ray

    watch = Watch(search, folder, tell)
    with _tune_settings(), tempfile.TemporaryDirectory(prefix="paceline-search-") as scratch:
        import ray

        own = not ray.is_initialized()
        if own:
            connect_to_ray(replace(search.trials[0].job, place=_whole(search)))
        try:
            with _signals(watch):
                _fit(search, left, _scheduler(search, known), watch, scratch)
        finally:
            if own:
                ray.shutdown()
    if watch.refused:
        raise UserError(watch.refused)
    if watch.signal:
        raise Interrupted(watch.signal)
    return watch.crashed


def is_done(search: Search, trial: TrialSummary) -> bool:
    """Return whether nothing is left to train. Without a scheduler, no trial stays stopped."""
    stays = ("finished", "failed") + ("stopped",) * (search.options.scheduler == "asha")
    return trial.state in stays


def _fit(search: Search, left: list[Trial], scheduler: Any, watch: Watch, scratch: str) -> None:
    from ray import tune

    from paceline.engines_more.object_store.ray_cluster import resources_of
    from paceline.extras.search.trainable import TrialOnRay

    wanted = resources_of(replace(search.trials[0].job, place=_whole(search)), "a trial")
    resources = {"cpu": wanted["num_cpus"], "gpu": wanted["num_gpus"]}
    trials = [
        {
            "number": trial.number,
            "name": trial.name,
            "folder": os.getcwd(),
            "search_dir": absolute(search.where),
            "metric": search.options.metric,
            "job": replace(
                trial.job, run=replace(trial.job.run, run_dir=absolute(trial.run_dir))
            ).to_json(),
        }
        for trial in left
    ]
    tuner = tune.Tuner(
        tune.with_resources(TrialOnRay, resources),
        param_space={"trial": tune.grid_search(trials)},
        tune_config=tune.TuneConfig(
            scheduler=scheduler, max_concurrent_trials=search.options.max_concurrent or None
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=scratch,
            verbose=0,
            stop=_stopper(watch),
            callbacks=[_callback(watch)],
            failure_config=tune.FailureConfig(max_failures=MAX_FAILURES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs have their own
        ),
    )
    tuner.fit()


def _whole(search: Search) -> Place:
    """Return the place with what a whole trial needs as that of one worker."""
    place = search.place
    processes = place.workers + place.ps + bool(place.ps)
    gpus = place.ray.gpus_per_worker
    cpus = place.ray.cpus_per_worker * processes
    ray = replace(place.ray, cpus_per_worker=cpus, gpus_per_worker=gpus * place.workers)
    return replace(place, on="ray", workers=1, ps=0, min_workers=0, ray=ray)


def _scheduler(search: Search, known: Sequence[TrialSummary]) -> Any:
    """Return Tune's scheduler, which knows the evaluations of the trials that are done."""
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    options = search.options
    if options.scheduler == "none":
        return FIFOScheduler()
    scheduler = ASHAScheduler(
        time_attr="progress",
        metric=search.metric,
        mode="max" if options.metric == "accuracy" else "min",
        max_t=1.0,
        grace_period=options.grace,
        reduction_factor=options.reduction,
        stop_last_trials=False,  # they end by themselves, after their result is written
    )
    for trial in known:
        if is_done(search, trial):
            stand_in = SimpleNamespace(trial_id=trial.run_dir)
            scheduler.on_trial_add(None, stand_in)
            for each in trial.evaluations:
                value = getattr(each, options.metric)
                result = {"progress": each.progress, search.metric: value}
                scheduler.on_trial_result(None, stand_in, result)
    return scheduler


class Watch:
    """What the driver sees of the trials: it shows it, and stores which were stopped or failed."""

    def __init__(self, search: Search, folder: SearchFolder, tell: Tell) -> None:
        self.signal = 0
        self.refused = ""
        """Why no trial can be trained."""
        self.crashed: list[str] = []
        self._search, self._folder, self._tell = search, folder, tell
        self._trials = {trial.name: trial for trial in search.trials}

    @property
    def ends(self) -> bool:
        """Whether all trials must stop."""
        return bool(self.signal or self.refused)

    def started(self, name: str) -> None:
        """Show that a trial starts."""
        self._say(name, "starts")

    def reported(self, name: str, result: dict[str, Any]) -> None:
        """Show an evaluation, or store why a trial failed."""
        trial = self._trials[name]
        if reason := result.get("refused"):
            if result.get("started"):  # such as a loss that is not finite: always the same
                self._folder.failed[name] = reason
                self._folder.save()
                self._say(name, f"failed: {reason}")
            else:
                self.refused = self.refused or f"trial {trial.number}: {reason}"
        elif reason := result.get("crashed"):
            self.crashed.append(f"trial {trial.number}: {reason}")
            self._say(name, f"failed: {reason}")
        elif "epoch" in result and "known" not in result:
            accuracy, loss = result["accuracy"], result["loss"]
            at = f"epoch {result['epoch']:.4g} ({result['progress']:.0%})"
            self._say(name, f"{at}  validation accuracy {accuracy:.4f}  loss {loss:.4f}")

    def ended(self, name: str, last: dict[str, Any]) -> None:
        """Store that the scheduler stopped a trial, unless it ended by itself."""
        if self.ends or "finished" in last or "step" not in last:
            return
        self._folder.stopped[name] = last["step"]
        self._folder.save()
        self._say(name, f"stopped after {last['progress']:.0%}: most others were better by then")

    def lost(self, name: str, reason: str) -> None:
        """Remember a trial whose actor was lost too often."""
        self.crashed.append(f"trial {self._trials[name].number}: {reason}")

    def interrupt(self, number: int, _: Any) -> None:
        """Let all trials save and end; the second time, end at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number

    def _say(self, name: str, text: str) -> None:
        trial = self._trials[name]
        self._tell(f"trial {trial.number}/{len(self._trials)}  {trial.words}: {text}")


def _callback(watch: Watch) -> Any:
    """Return Tune's callback that tells the watch."""
    from ray import tune

    class Tell(tune.Callback):
        def on_trial_start(self, trial: Any, **_: Any) -> None:
            watch.started(trial.config["trial"]["name"])

        def on_trial_result(self, trial: Any, result: dict[str, Any], **_: Any) -> None:
            watch.reported(trial.config["trial"]["name"], result)

        def on_trial_complete(self, trial: Any, **_: Any) -> None:
            watch.ended(trial.config["trial"]["name"], trial.last_result or {})

        def on_trial_error(self, trial: Any, **_: Any) -> None:
            text = str(trial.get_error() or "its actor was lost").strip().splitlines()[-1]
            watch.lost(trial.config["trial"]["name"], text)

    return Tell()


def _stopper(watch: Watch) -> Any:
    """Return Tune's stopper that ends all trials when the watch says so."""
    from ray import tune

    class Stop(tune.Stopper):
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return watch.ends

        def stop_all(self) -> bool:
            return watch.ends

    return Stop()


@contextmanager
def _tune_settings() -> Iterator[None]:
    """Set what Tune reads from the environment, and keep it quiet."""
    before = {name: os.environ.get(name) for name in TUNE_SETTINGS}
    os.environ.update(TUNE_SETTINGS)
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


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
