"""Compares the facts that decide the bits of each worker, before they train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.errors import UserError
from paceline.experiment.diff import diff


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
