"""MLflow: a run in the experiment MLFLOW_EXPERIMENT_NAME (or paceline) at MLFLOW_TRACKING_URI."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# MLflow itself would try for minutes; `trackers` tries again.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from paceline.experiment.fields import Json

MOST_PARAMS, MOST_METRICS = 100, 1000
"""That one request of MLflow may have."""
LONGEST_VALUE = 6000


class Client:
    """A run of MLflow. `trackers.Client` describes the methods."""

    def __init__(self, name: str, params: Json) -> None:
        self._name, self._params = name, params
        self._client: Any = None
        self._id = ""

    def open(self, run_id: str) -> str:
        self._client = self._client or MlflowClient()
        if run_id:
            self._id = run_id
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        self._id = self._id or self._create()
        params = [Param(name, str(value)[:LONGEST_VALUE]) for name, value in self._params.items()]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._id, params=params[first : first + MOST_PARAMS])
        return self._id

    def _create(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "paceline"
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        return str(self._client.create_run(experiment, run_name=self._name).info.run_id)

    def log(self, records: Sequence[tuple[int, dict[str, float]]]) -> None:
        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, step)
            for step, numbers in records
            for name, value in numbers.items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + MOST_METRICS])

    def finish(self, result: Json, files: Sequence[Path]) -> None:
        for name, value in result.items():
            self._client.set_tag(self._id, f"paceline.{name}", str(value))
        for file in files:
            self._client.log_artifact(self._id, str(file))
        status = "FINISHED" if result.get("finished") else "KILLED"
        self._client.set_terminated(self._id, "FAILED" if result.get("error") else status)
