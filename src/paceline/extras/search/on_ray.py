"""Trains the trials of a search as tasks on Ray, and stops the worse ones early.

A task trains one run with processes of its node, as on one machine. After each block it asks the
judge, an actor beside the driver, whether to continue. The driver prints what the judge heard, and
stores which trials were stopped or failed.
"""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paceline.engines_more.ray_actors.crew import connect_to_ray, resources_of
from paceline.errors import Ended, PassingFault, UserError
from paceline.extras.search.options import Options, SearchPlan, Trial
from paceline.extras.search.trials import (
    RECORD,
    SearchFolder,
    TrialEvaluation,
    TrialSummary,
    evaluation_of,
    is_done,
    is_worse,
)
from paceline.job import Job
from paceline.launch import launch
from paceline.messages import Block, Evaluated, Message, Start
from paceline.storage.locations import is_remote

MAX_RETRIES = 3
"""How often a trial is started again after its node or process was lost."""

Tell = Callable[[str], None]


class TrialOutcome(NamedTuple):
    """How a trial ended: finished, stopped, failed, refused or crashed."""

    kind: str
    reason: str = ""
    step: int = 0


class Judge:
    """An actor that hears the evaluations of all trials and decides which continue."""

    def __init__(self, options: Options, known: dict[int, list[TrialEvaluation]]) -> None:
        self._options, self._known = options, known
        self._lines: list[tuple[int, str]] = []

    def begin(self, number: int) -> None:
        """Note that a trial starts."""
        self._known.setdefault(number, [])
        self._lines.append((number, "starts"))

    def stops(self, number: int, news: TrialEvaluation) -> bool:
        """Note an evaluation; return whether the trial must end."""
        earlier = self._known[number]
        if earlier and news.step <= earlier[-1].step:  # repeated after a restart
            return False
        earlier.append(news)
        at = f"epoch {news.epoch:.4g} ({news.progress:.0%})"
        text = f"{at}  validation accuracy {news.accuracy:.4f}  loss {news.loss:.4f}"
        self._lines.append((number, text))
        return self._options.scheduler == "asha" and is_worse(self._known, number)

    def lines(self) -> list[tuple[int, str]]:
        """Return what is new since the last call: numbers of trials, and texts."""
        lines, self._lines = self._lines, []
        return lines


def train_trial(number: int, job: Job, folder: str, search_dir: str, judge: Any) -> TrialOutcome:
    """Train a trial on this node until its end or the judge's verdict. Runs as a task of Ray."""
    with suppress(OSError):  # relative paths mean the same as for the command
        os.chdir(folder)
    if not is_remote(search_dir) and not Path(search_dir, RECORD).exists():
        return TrialOutcome(
            "refused",
            f"the node {socket.gethostname()} does not see {search_dir}; pass a --search-dir that "
            "all nodes see: on a shared disk, or s3://...",
        )
    total_steps, step, epoch, is_stopped = 1, 0, 0.0, False

    def listen(message: Message) -> None:
        nonlocal total_steps, step, epoch, is_stopped
        if isinstance(message, Start):
            total_steps = message.total_steps
        elif isinstance(message, Block):
            epoch = message.metrics.get("epoch") or 0.0
        elif isinstance(message, Evaluated) and not is_stopped:
            step = message.step
            news = evaluation_of(message.metrics | {"step": step, "epoch": epoch}, total_steps)
            if news and ray.get(judge.stops.remote(number, news)):
                is_stopped = True
                raise StopIteration

    try:
        ray.get(judge.begin.remote(number))
        result = launch(job, listen)
    except (PassingFault, Ended) as error:
        return TrialOutcome("crashed", str(error))
    except UserError as error:  # such as a loss that is not finite: always the same
        return TrialOutcome("failed" if error.started else "refused", str(error))
    return TrialOutcome("finished" if result.get("finished") else "stopped", step=step)


def run_trials(
    plan: SearchPlan, known: Sequence[TrialSummary], folder: SearchFolder, tell: Tell
) -> list[str]:
    """Train the trials that are not done; return the reasons why some failed unexpectedly. Raises
    UserError for what stops all trials."""
    with ExitStack() as at_end:
        if not ray.is_initialized():
            connect_to_ray(_whole_trial(plan))
            at_end.callback(ray.shutdown)
        return _Driver(plan, folder, tell).run(known)


class _Driver:
    """Starts the tasks, prints what happens, and stores which trials were stopped or failed."""

    def __init__(self, plan: SearchPlan, folder: SearchFolder, tell: Tell) -> None:
        self._plan, self._folder, self._tell = plan, folder, tell
        self._crashed: list[str] = []

    def run(self, known: Sequence[TrialSummary]) -> list[str]:
        """Train all trials; return why some failed unexpectedly."""
        plan, options = self._plan, self._plan.options
        done = {t.number: list(t.evaluations) for t in known if is_done(t, options)}
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        judge: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(Judge).remote(options, done)
        resources = resources_of(_whole_trial(plan), "a trial")
        train: Any = ray.remote(**resources, max_retries=MAX_RETRIES)(train_trial)
        waiting = [trial for trial in plan.trials if trial.number not in done]
        most, running = options.max_concurrent or len(waiting), dict[Any, Trial]()
        while waiting or running:
            while waiting and len(running) < most:
                trial = waiting.pop(0)
                arguments = (trial.number, trial.job, os.getcwd(), plan.where, judge)
                running[train.remote(*arguments)] = trial
            ended, _ = ray.wait(list(running), timeout=0.5)
            for number, text in ray.get(judge.lines.remote()):
                self._say(plan.trials[number - 1], text)
            for task in ended:
                self._note(running.pop(task), task)
        return self._crashed

    def _note(self, trial: Trial, task: Any) -> None:
        try:
            outcome: TrialOutcome = ray.get(task)
        except ray.exceptions.RayError as error:
            outcome = TrialOutcome("crashed", str(error).strip().splitlines()[-1])
        match outcome.kind:
            case "refused":
                raise UserError(f"trial {trial.number}: {outcome.reason}")
            case "crashed":
                self._crashed.append(f"trial {trial.number}: {outcome.reason}")
            case "failed":
                self._folder.failed[trial.name] = outcome.reason
                self._say(trial, f"failed: {outcome.reason}")
            case "stopped":
                self._folder.stopped[trial.name] = outcome.step
                self._say(trial, f"stopped after step {outcome.step:,}: most others were better")
        self._folder.save()

    def _say(self, trial: Trial, text: str) -> None:
        self._tell(f"trial {trial.number}/{len(self._plan.trials)}  {trial.words}: {text}")


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
