"""A trial as Ray Tune runs it: an actor that trains one run and reports each evaluation.

The workers are processes of the actor's node, as on one machine.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray import tune

from paceline import messages
from paceline.errors import Ended, UserError
from paceline.extras.search.search_folder import RECORD
from paceline.extras.search.trials import TrialEvaluation
from paceline.job import Job
from paceline.launch import launch
from paceline.messages import Message
from paceline.storage.locations import is_remote

BEAT_S = 1.0
"""How long `step` waits for an evaluation. Tune can stop the trial only between two calls."""
END_S = 300.0
"""How long a trial that is stopped may take to save."""


class TrialOnRay(tune.Trainable):
    """`setup`, `step` and `cleanup` are what Tune calls, in the main thread of the actor."""

    def setup(self, config: dict[str, Any]) -> None:
        """Read which run to train; nothing is trained yet."""
        trial = config["trial"]
        with contextlib.suppress(OSError):  # relative paths mean the same as for the command
            os.chdir(trial["folder"])
        self._job = Job.from_json(trial["job"])
        self._refused = why_not_here(trial["search_dir"])
        self._metric = trial["metric"]
        self._last: TrialEvaluation | None = None
        self._total_steps = 0
        self._epoch = 0.0
        self._inbox: queue.Queue[TrialEvaluation | dict[str, Any]] = queue.Queue()
        self._may_continue = threading.Semaphore(0)
        self._waits = False
        """Whether the training thread waits for `_may_continue`."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self) -> dict[str, Any]:
        """Return the next evaluation, how the training ended, or after a moment nothing new."""
        if self._refused:
            return {"done": True, "finished": False, "refused": self._refused}
        if self._thread is None:
            self._thread = threading.Thread(target=self._train, daemon=True)
            self._thread.start()
        if self._waits:  # Tune calls `step` again, so the scheduler did not stop the trial
            self._waits = False
            self._may_continue.release()
        try:
            news = self._inbox.get(timeout=BEAT_S)
        except queue.Empty:
            return {}
        if isinstance(news, TrialEvaluation):
            self._waits = True
            return self._report(news)
        last = self._report(self._last) if self._last and news.get("finished") else {}
        return last | news | {"done": True}

    def cleanup(self) -> None:
        """Let a training that is still running save and end."""
        self._stop.set()
        self._may_continue.release()
        if self._thread:
            self._thread.join(END_S)

    def _report(self, evaluation: TrialEvaluation) -> dict[str, Any]:
        value = getattr(evaluation, self._metric)
        # A loss that is not finite is the worst that there is. NaN would confuse the scheduler.
        value = value if value == value else float("inf")
        progress = evaluation.step / self._total_steps
        return asdict(evaluation) | {"progress": progress, f"validation_{self._metric}": value}

    def _train(self) -> None:
        """Train to the end, in a separate thread."""
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
        """Pass evaluations on; StopIteration ends the training as an interruption would."""
        match message:
            case messages.Start():
                self._total_steps = message.total_steps
            case messages.Block():
                self._epoch = message.metrics.get("epoch") or 0.0
            case messages.Evaluation():
                self._on_evaluation(message)
        if self._stop.is_set():
            self._stop.clear()  # a second interruption would not let it save
            raise StopIteration

    def _on_evaluation(self, message: messages.Evaluation) -> None:
        metrics = message.metrics
        if "validation_accuracy" not in metrics or (self._last and message.step <= self._last.step):
            return  # after a restart, the training repeats what was lost
        self._last = TrialEvaluation(
            message.step, self._epoch, metrics["validation_accuracy"], metrics["validation_loss"]
        )
        if message.step < self._total_steps:  # the last one is reported when the run is finished
            self._inbox.put(self._last)
            self._may_continue.acquire()


def why_not_here(search_dir: str) -> str:
    """Return why this node cannot train a trial: it does not see the search folder."""
    if is_remote(search_dir) or Path(search_dir, RECORD).exists():
        return ""
    return (
        f"the node {socket.gethostname()} does not see {search_dir}; give a --search-dir that all "
        "nodes see: on a shared disk, or s3://..."
    )
