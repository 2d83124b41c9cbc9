"""Compares the facts that decide the bits of each worker, before they train."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.experiment.fields import diff


def gather_facts(
    gather: Callable[[np.ndarray], np.ndarray], facts: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the facts of each worker. `gather` returns one vector of each worker as rows."""
    text = json.dumps(facts, sort_keys=True).encode()
    lengths = gather(np.array([len(text)], np.int64))[:, 0]
    padded = np.frombuffer(text.ljust(int(lengths.max()), b" "), np.uint8).astype(np.int32)
    return [json.loads(bytes(row.astype(np.uint8))) for row in gather(padded)]


def check_alike(everyone: Sequence[dict[str, Any]], addresses: Sequence[str]) -> None:
    """Raise UserError if a worker's facts differ from the chief's, which come first."""
    for index, facts in enumerate(everyone[1:], 1):
        check_facts(
            f"worker {index} ({addresses[index]}) differs from the chief", everyone[0], facts
        )


def check_facts(what: str, expected: dict[str, Any], facts: dict[str, Any]) -> None:
    """Raise UserError, which begins with `what`, if the facts are not the expected ones."""
    if different := diff(expected, facts):
        raise UserError(
            f"{what}: {', '.join(different[:4])}; all workers need the same experiment, data, "
            "libraries, kernels and kind of CPU"
        )
