"""What workers compare before they train: whatever decides the bits, and nothing else."""

import platform
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import fingerprint as compared
from paceline.engines.base import check_facts
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment, Model
from paceline.fingerprint import fingerprint
from paceline.job import Job
from paceline.kernels import library
from tiny import build_tiny_core


@pytest.fixture
def facts_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function: the code of a worker -> its fingerprint, without a core."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compared, "data_facts", lambda job, core: {"train": 1})
    core: Any = SimpleNamespace(template=SimpleNamespace(kernels="own", foreign=(), bits="any"))

    def facts(code: str) -> dict[str, Any]:
        Path("own.py").write_text(code)
        return compared.fingerprint(Job(Experiment(model=Model(build="own.py:build"))), core)

    return facts


def test_workers_with_different_code_of_their_own_do_not_train_together(facts_of: Any) -> None:
    chiefs = facts_of("def build(shape, classes): return 1")
    check_facts("worker 1", chiefs, facts_of("def build(shape, classes): return 1  # the same"))
    with pytest.raises(UserError, match=r"worker 1: code\.model\.build: .*; all workers need the"):
        check_facts("worker 1", chiefs, facts_of("def build(shape, classes): return 2"))


def test_workers_with_different_sources_of_the_kernels_do_not_train_together(
    facts_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chiefs = facts_of("def build(): pass")
    monkeypatch.setattr(library, "sources_digest", lambda: "f" * 64)
    with pytest.raises(UserError, match=r"worker 1: kernels: 'own.*\(\w+\)' -> 'own.*\(f{16}\)'"):
        check_facts("worker 1", chiefs, facts_of("def build(): pass"))


def test_workers_with_different_patch_releases_of_python_train_together(
    facts_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for version in ("3.11.7", "3.11.20", "3.12.1"):
        monkeypatch.setattr(platform, "python_version", lambda version=version: version)
        found[version] = facts_of("def build(): pass")
    check_facts("worker 1", found["3.11.7"], found["3.11.20"])
    with pytest.raises(UserError, match=r"libraries\.python: '3\.11' -> '3\.12'"):
        check_facts("worker 1", found["3.11.7"], found["3.12.1"])


def test_settings_that_differ_between_tasks_are_named_with_both_values() -> None:
    core = build_tiny_core()
    own = Job(core.experiment)
    other = replace(own, experiment=replace(core.experiment, seed=core.experiment.seed + 5))
    facts = [fingerprint(job, core) for job in (own, other)]
    with pytest.raises(UserError, match=r"^worker 1 differs: experiment.seed: \d+ -> \d+; all"):
        check_facts("worker 1 differs", *facts)
