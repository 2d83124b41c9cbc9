"""What workers compare before they train."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.engines.base import check_facts
from paceline.errors import UserError
from paceline.fingerprint import fingerprint
from paceline.job import Job
from tiny import build_tiny_core


def test_settings_that_differ_between_tasks_are_named_with_both_values() -> None:
    core = build_tiny_core()
    own = Job(core.experiment)
    other = replace(own, experiment=replace(core.experiment, seed=core.experiment.seed + 5))
    facts = [fingerprint(job, core) for job in (own, other)]
    with pytest.raises(UserError, match=r"^worker 1 differs: experiment.seed: \d+ -> \d+; all"):
        check_facts("worker 1 differs", *facts)
