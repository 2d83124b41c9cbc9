"""What the older systems let people do works, or is refused with the reason: older_systems.txt.

What an old command did comes from the code of its system: its default flags, and how it divided a
batch. Nothing is trained, and no GPU is needed.
"""

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from paceline.cli.parse import _unknown, flags_of, parse
from paceline.cli.train import Train
from paceline.engines.placement import assign
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import flatten, to_json
from paceline.experiment.names import SHORT_NAMES
from paceline.experiment.plan import Plan, build_plan
from paceline.experiment.schedule import rates_at
from paceline.job import Job
from paceline.places.tf_config import parse_tf_config

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "coming-from.md").read_text()
EXAMPLES = {"tfrecord": 1_281_167, "shapes": 10_000}
"""Training images of a source; CIFAR has 50,000."""
HOSTS = {"master": ["ip0:2222"], "worker": ["ip1:2222"], "ps": ["ip0:2223", "ip1:2223"]}
"""The cluster that both older systems show. Their masters train."""


KINDS = ("says", "docs", "test")


class Row(NamedTuple):
    system: str
    old: str
    new: str
    meaning: str

    @property
    def kind(self) -> str:
        return word if (word := self.meaning.split()[0]) in KINDS else "numbers"


TEXT = (Path(__file__).parent / "older_systems.txt").read_text()
LINES = [line for line in TEXT.splitlines() if line and not line.startswith("#")]
ROWS = [Row(*(cell.strip() for cell in line.split(" | "))) for line in LINES]


def rows_of(kind: str) -> list[object]:
    """Return the rows that say something, or those that name numbers and settings."""
    found = [row for row in ROWS if row.kind == kind]
    return [pytest.param(row, id=f"{row.system}: {row.old[:60]}") for row in found]


@cache
def commands_of_page() -> dict[str, str]:
    """Return the left column of each row of the page, and its command."""
    rows = [line.strip("| ").rsplit(" | ", 1) for line in PAGE.splitlines() if line[-3:] == "` |"]
    return {old: new.strip("`") for old, new in rows}


def found_on_page(row: Row) -> tuple[str, str]:
    """Return the one row of the page with this text."""
    (found,) = (pair for pair in commands_of_page().items() if row.old in f"| {pair[0]}")
    return found


def job_of(row: Row) -> Job:
    """Return what the command of a row asks for."""
    command = found_on_page(row)[1] if row.new == "page" else f"paceline train {row.new}"
    recipe, *flags = shlex.split(command[command.index(" train ") :])[1:]
    default = Train.of_recipe(recipe)
    train = parse(Train, "paceline train", flags, default=default) if flags else default
    return Job(train.experiment, train.place, train.run)


def numbers_of(job: Job, old: str) -> dict[str, object]:
    """Return what a job computes, on hosts that have the GPUs that it asks for."""
    e, workers = job.experiment, job.place.workers
    if "master" in old:
        task = {"cluster": HOSTS, "task": {"type": "worker", "index": 0}}
        cluster, _ = parse_tf_config(json.dumps(task), job.place.ignore_ps)
        workers = cluster.num_workers
    elif "server1:1,server2:1" in old:  # two tasks of srun
        workers = 2
    gpus = e.replicas // workers if job.place.devices == "gpu" else 0
    hosts = [str(n) for n in range(workers)]
    shares = assign(hosts, dict.fromkeys(hosts, gpus), dict.fromkeys(hosts, 8), e.replicas)
    plan = build_plan(e, EXAMPLES.get(e.data.source, 50_000) - e.data.validation)
    return {
        "workers": workers,
        "replicas": e.replicas,
        "per_replica": e.replica_batch_size,
        "gpus": sum(len(share.gpus) for share in shares),
        "rate": rates_at(e, plan, 0).learning_rate,
        "steps": plan.total_steps,
        "falls": falls_of(e, plan),
    }


def falls_of(e: Experiment, plan: Plan) -> tuple[int, ...]:
    """Return where the learning rate falls: in steps, for ImageNet in epochs."""
    ends = [round(b * plan.steps_per_epoch) for b in e.schedule.boundaries]
    falls = [step for step in ends if step < plan.total_steps]
    for step in falls:
        before, after = (rates_at(e, plan, n).learning_rate for n in (step - 1, step))
        assert after < before
    unit = plan.steps_per_epoch if e.data.source == "tfrecord" else 1
    return tuple(step // unit for step in falls)


def as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@pytest.mark.parametrize("row", rows_of("numbers"))
def test_a_new_command_computes_what_the_old_one_did(row: Row) -> None:
    job = job_of(row)
    old = found_on_page(row)[0] if row.new == "page" else row.old
    given = [flatten(to_json(part)) for part in (job.experiment, job.place, job.run)]
    known = given[0] | given[1] | given[2] | numbers_of(job, old)
    expected = dict(pair.split("=", 1) for pair in row.meaning.split())
    assert {name: as_text(known[name]) for name in expected} == expected


@pytest.mark.parametrize("row", rows_of("says"))
def test_what_does_not_work_is_refused_with_the_reason(row: Row) -> None:
    """Of old flags, each is answered with what to give, or is taken for that flag."""
    expected, known = row.meaning.removeprefix("says "), set(flags_of(Train))
    if row.system != "flags":
        with pytest.raises(UserError, match=re.escape(expected)):
            job_of(row)
        return
    for old in row.old.split():
        name = old.removeprefix("--").replace("_", "-")
        if name in known or SHORT_NAMES.get(name) in known:
            assert expected in (name, SHORT_NAMES.get(name))
        else:
            whole = rf"(?<![a-z.]){re.escape(expected)}(?![a-z])"
            assert re.search(whole, _unknown(old, Train)), old


def test_what_is_proved_elsewhere_is() -> None:
    """The page has these sentences, and there are tests with these names."""
    page = " ".join(PAGE.split())
    for row in ROWS:
        rest = row.meaning.partition(" ")[2]
        if row.kind == "docs":
            assert rest in page, rest
        elif row.kind == "test":
            path, name = rest.split("::")
            assert f"\ndef {name}(" in (TESTS / path).read_text(), rest
            assert row.new != "page" or found_on_page(row)


def test_every_command_of_the_page_is_a_row() -> None:
    named = {found_on_page(row)[0] for row in ROWS if row.new == "page"}
    assert named == set(commands_of_page())
