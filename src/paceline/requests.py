"""What a worker can do besides training: one dataclass for each kind of request, and who does it.

A request crosses processes inside a `Job`. Its `kind` tells the classes apart in JSON.
"""

from dataclasses import dataclass
from typing import Literal

from paceline.experiment.data import Views

Quantize = Literal["", "int8"]


@dataclass(frozen=True)
class EvaluateRequest:
    """Evaluate a checkpoint of a run."""

    checkpoint: str = "best"
    data_dir: str = ""
    """Where the data is now. Empty means where the training found it."""
    split: str = "test"
    views: Views = "none"
    top_k: tuple[int, ...] = ()
    examples: str = ""
    """File for the label and probabilities of each example. Empty writes none."""
    kind: Literal["evaluate"] = "evaluate"


@dataclass(frozen=True)
class PredictRequest:
    """Predict the classes of image files."""

    files: tuple[str, ...]
    checkpoint: str = "best"
    top: int = 5
    views: Views = "none"
    kind: Literal["predict"] = "predict"


@dataclass(frozen=True)
class ExportRequest:
    """Export the model of a run."""

    out: str
    to: str
    checkpoint: str = "best"
    quantize: Quantize = ""
    data_dir: str = ""
    """Where the training images are now, for int8. Empty means where the training found them."""
    kind: Literal["export"] = "export"


@dataclass(frozen=True)
class DescribeRequest:
    """Return every derived number of a training without training (`--dry-run`)."""

    kind: Literal["describe"] = "describe"


UseRun = EvaluateRequest | PredictRequest | ExportRequest
"""What uses a trained run. It has nothing to save when it is interrupted."""
Request = EvaluateRequest | PredictRequest | ExportRequest | DescribeRequest

ANSWERS = {
    "evaluate": "paceline.results.evaluate",
    "predict": "paceline.results.predict",
    "export": "paceline.results.export",
    "describe": "paceline.results.dry_run",
}
"""Kind of a request -> the module whose `answer(job, request, send)` returns the result."""
