"""The chain of a run: what it computed, as digests and signatures that a later training can repeat.

chain.jsonl has a line for each block of steps: the signatures of all replicas in these steps
(`maths.signatures`) and, after the steps that the plan records, the digest of the state and a link:
a digest of this digest and of the link before it. The first link is a digest of the experiment and
the data. The last one stands in result.json. Recorded steps depend on the experiment alone, so
equal runs end with the same link, wherever and with however many workers they were trained.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.experiment.experiment import MOVABLE, Experiment
from paceline.experiment.fields import Json, diff

if TYPE_CHECKING:
    from paceline.chief import ChiefRun
    from paceline.job import Job
    from paceline.loop import Action
    from paceline.maths.metrics import BlockResult, EvalResult
    from paceline.run_folder.folder import RunFolder


def first_link(run: RunFolder) -> str:
    """Return the link of step 0: what decides the numbers of a run."""
    changes = diff(Experiment().to_json(), run.experiment().to_json(), MOVABLE)
    text = json.dumps([changes, run.config()["data"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def next_link(link: str, step: int, state: str) -> str:
    """Return the link after a step from the link before it and the digest of the state."""
    return hashlib.sha256(f"{link} {step} {state}".encode()).hexdigest()


def load_chain(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Return the function that builds the chain's action; asynchronous training has no chain."""
    is_async = job.experiment.sync.method == "async"
    return lambda chief: [] if is_async else [WriteChain(chief)]


class WriteChain:
    """An action that writes a line of chain.jsonl."""

    def __init__(self, chief: ChiefRun) -> None:
        self._engine, self._plan, self._records = chief.engine, chief.core.plan, chief.folder.chain
        self._link = first_link(chief.folder)
        self._records.truncate(chief.first_step, self._linked)

    def _linked(self, record: Json) -> Json:
        """Return an earlier record as this training links it: it can be longer than it was."""
        state = record.pop("state", None)
        record.pop("link", None)
        if state and self._plan.records_at(record["step"]):  # else it was the end of a shorter one
            self._link = next_link(self._link, record["step"], state)
            record |= {"state": state, "link": self._link}
        return record

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        signatures = base64.b64encode(block.signatures.astype("<u2").tobytes()).decode()
        record: Json = {"step": block.step, "signatures": signatures}
        if self._plan.records_at(block.step):
            record["state"] = self._engine.state().sha256()
        self._records.append(self._linked(record))

    def facts(self) -> Json:
        """Return the chain's end for result.json."""
        return {"chain": self._link}
