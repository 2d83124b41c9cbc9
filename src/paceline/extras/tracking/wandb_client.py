"""Weights & Biases: a run in the project WANDB_PROJECT (or paceline).

With WANDB_MODE=offline nothing is sent; `wandb sync` sends it later.
"""

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb

from paceline.experiment.fields import Json


class Client:
    """A run of Weights & Biases. `trackers.Client` describes the methods."""

    def __init__(self, name: str, params: Json) -> None:
        self._name = name
        self._params = params
        self._run: Any = None

    def open(self, run_id: str) -> str:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "paceline",
            name=self._name,
            id=run_id or uuid.uuid4().hex[:12],
            resume="allow",
            config=self._params,
            settings=wandb.Settings(console="off", init_timeout=30),
        )
        self._run.define_metric("*", step_metric="step")
        return str(self._run.id)

    def log(self, records: Sequence[tuple[int, dict[str, float]]]) -> None:
        for step, numbers in records:
            self._run.log({"step": step, **numbers})

    def finish(self, result: Json, files: Sequence[Path]) -> None:
        for name, value in result.items():
            self._run.summary[name] = value
        artifact = wandb.Artifact(f"run-{self._run.id}", type="run")
        for file in files:
            artifact.add_file(str(file))
        self._run.log_artifact(artifact)
        self._run.finish(exit_code=1 if result.get("error") else 0)
