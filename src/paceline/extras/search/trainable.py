"""A trial as Ray Tune runs it: an actor that trains one run and reports each evaluation.

The workers are processes of the actor's node, as on one machine. Evaluations that the run folder
has already are reported first, without training: so a search that is started again tells the
scheduler what it knew before.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray import tune

from paceline import messages
from paceline.errors import Ended, UserError
from paceline.extras.search.search_folder import RECORD
from paceline.extras.search.trials import Evaluation, read_evaluations
from paceline.job import Job
from paceline.launch import launch
from paceline.messages import Message
from paceline.runs.finding import existing_run
from paceline.runs.folder import RunFolder
from paceline.storage.backends import is_remote

BEAT_S = 1.0
"""How long `step` waits for an evaluation. Tune can stop the trial only between two calls."""
END_S = 300.0
"""How long a trial that is stopped may take to save."""


class TrialOnRay(tune.Trainable):
    """`setup`, `step` and `cleanup` are what Tune calls, in the main thread of the actor."""

    def setup(self, config: dict[str, Any]) -> None:
        """Read what is known of the run; nothing is trained yet."""
        trial = config["trial"]
        with contextlib.suppress(OSError):  # relative paths mean the same as for the command
            os.chdir(trial["folder"])
        self._job = Job.from_json(trial["job"])
        self._refused = _why_not_here(trial["search_dir"])
        self._metric = trial["metric"]
        self._known = deque(_known_evaluations(self._job))
        self._last: Evaluation | None = None
        self._total_steps = 0
        self._epoch = 0.0
        self._inbox: queue.Queue[Evaluation | dict[str, Any]] = queue.Queue()
        self._answers: queue.Queue[bool] = queue.Queue()
        self._waits = False
        """Whether the training's thread waits for an answer: whether it shall continue."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self) -> dict[str, Any]:
        """Return the next evaluation, how the training ended, or after a moment nothing new."""
        if self._refused:
            return {"done": True, "finished": False, "refused": self._refused}
        if self._known:
            return self._report(self._known.popleft()) | {"known": True}
        if self._thread is None:
            self._thread = threading.Thread(target=self._train, daemon=True)
            self._thread.start()
        if self._waits:
            self._waits = False
            self._answers.put(True)
        try:
            news = self._inbox.get(timeout=BEAT_S)
        except queue.Empty:
            return {}
        if isinstance(news, Evaluation):
            self._waits = True
            return self._report(news)
        last = self._report(self._last) if self._last and news.get("finished") else {}
        return last | news | {"done": True}

    def cleanup(self) -> None:
        """Let a training that is still running save and end."""
        self._stop.set()
        self._answers.put(False)
        if self._thread:
            self._thread.join(END_S)

    def _report(self, evaluation: Evaluation) -> dict[str, Any]:
        self._last = evaluation
        value = getattr(evaluation, self._metric)
        # A loss that is not finite is the worst that there is. NaN would confuse the scheduler.
        value = value if value == value else float("inf")
        return asdict(evaluation) | {f"validation_{self._metric}": value}

    def _train(self) -> None:
        """Train to the end; this is another thread."""
        try:
            result = launch(self._job, self._listen)
            ended: dict[str, Any] = {"finished": bool(result.get("finished"))}
        except UserError as error:
            ended = {"finished": False, "refused": str(error), "started": error.started}
        except Ended as error:
            ended = {"finished": False, "crashed": str(error)}
        except Exception as error:
            ended = {"finished": False, "crashed": f"{type(error).__name__}: {error}"}
        self._inbox.put(ended)

    def _listen(self, message: Message) -> None:
        """Pass evaluations on, and wait for the answer: False stops, as an interruption would."""
        if self._stop.is_set():
            self._stop.clear()  # once is enough
            raise StopIteration
        match message:
            case messages.Start():
                self._total_steps = message.total_steps
            case messages.Block():
                self._epoch = message.metrics.get("epoch") or 0.0
            case messages.Evaluation():
                self._on_evaluation(message)

    def _on_evaluation(self, message: messages.Evaluation) -> None:
        metrics = message.metrics
        if "validation_accuracy" not in metrics or (self._last and message.step <= self._last.step):
            return  # a resumed training repeats what was lost
        evaluation = Evaluation(
            message.step,
            message.step / self._total_steps,
            self._epoch,
            metrics["validation_accuracy"],
            metrics["validation_loss"],
        )
        if message.step == self._total_steps:  # reported when the run is finished
            self._last = evaluation
            return
        self._inbox.put(evaluation)
        if not self._answers.get():
            self._stop.clear()
            raise StopIteration


def _why_not_here(search_dir: str) -> str:
    """Return why a node cannot train a trial: it does not see the folder of the search."""
    if is_remote(search_dir) or Path(search_dir, RECORD).exists():
        return ""
    return (
        f"the node {socket.gethostname()} does not see {search_dir}; give a --search-dir that all "
        "nodes see: on a shared disk, or s3://..."
    )


def _known_evaluations(job: Job) -> list[Evaluation]:
    """Return the evaluations of the run before its end, if it has begun."""
    if not is_remote(job.run.run_dir) and not RunFolder(job.run.run_dir).exists():
        return []
    try:
        found = read_evaluations(existing_run(job.run.run_dir, checkpoints=False))
    except UserError:  # it has not begun, or the training will say what is wrong
        return []
    return [each for each in found if each.progress < 1]
