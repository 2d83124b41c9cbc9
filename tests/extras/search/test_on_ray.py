"""Real searches on Ray: killed, stopped, continued, on two nodes, with the digests of `train`."""

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers import Ended, metrics_of, paceline, program, result_of, wait_until
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.search.on_ray import train_trial
from paceline.extras.search.space import draw, parse_over
from paceline.job import Job, Place
from paceline.storage.remote import Store

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

OVER = ("schedule.rate=0.01..0.5:log", "optimizer.weight-decay=1e-4,5e-4")
FLAGS = ("--data.validation", "48", "--over", *OVER, "--trials", "4", "--search-dir", "search")
EPOCHS = ("--epochs", "24")
"""Some seconds of training, to be killed in."""
STEPS = 24 * 7


def starts_of(run_dir: Path) -> list[int]:
    """Return the step of each start of a run."""
    lines = (run_dir / "starts.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def trials_of(ended: Ended) -> list[dict[str, Any]]:
    """Return the trials that a search with --json has printed."""
    assert ended.code == 0, ended.err
    trials: list[dict[str, Any]] = json.loads(ended.out.splitlines()[-1])["trials"]
    return trials


def runs_of(search: Path) -> list[Path]:
    return sorted(config.parent for config in search.glob("*/config.json"))


def is_finished(folder: Path) -> bool:
    return (folder / "result.json").exists() and bool(result_of(folder).get("finished"))


def is_half(folder: Path) -> bool:
    return not is_finished(folder) and bool(saved_steps(folder))


def saved_steps(folder: Path) -> list[int]:
    return [int(path.stem[5:]) for path in (folder / "checkpoints").glob("step-*")]


def is_early(folder: Path) -> bool:
    """Return whether a run will not be finished before it is killed."""
    return is_half(folder) and max(saved_steps(folder), default=STEPS) < STEPS // 2


def test_a_search_that_is_killed_goes_on_and_its_trials_have_the_digests_of_train(
    tmp_path: Path,
) -> None:
    search = tmp_path / "search"
    flags = ("search", "smoke", *FLAGS, *EPOCHS, "--scheduler", "none")
    with program(*flags, cwd=tmp_path) as running:
        wait_until(
            lambda: any(map(is_finished, runs_of(search))) and any(map(is_early, runs_of(search))),
            300.0,
        )
        os.kill(running.pid, signal.SIGKILL)
        wait_until(lambda: not running.workers(), 30.0, "a worker outlives its search")
        done = [run for run in runs_of(search) if is_finished(run)]
        half = [run for run in runs_of(search) if is_half(run)]
        assert done
        assert half
        before = {run: (run / "result.json").stat().st_mtime_ns for run in done}
        ended = paceline(*flags, "--json", cwd=tmp_path, timeout_s=300.0)
        running.wait_until_gone(180.0)  # agents of Ray try to reach their cluster for a minute
    trials = trials_of(ended)
    assert [trial["state"] for trial in trials] == ["finished"] * 4
    assert sorted(search / Path(trial["run_dir"]).name for trial in trials) == runs_of(search)
    expected = draw(parse_over(OVER, get_recipe("smoke")), 4, 0)
    assert [t["settings"] for t in sorted(trials, key=lambda t: t["number"])] == expected
    for folder, stamp in before.items():
        assert (folder / "result.json").stat().st_mtime_ns == stamp, "it was trained again"
        assert starts_of(folder) == [0]
    for folder in half:
        assert starts_of(folder)[-1] > 0, "it began anew"
        steps = [record["step"] for record in metrics_of(folder)]
        assert steps == sorted(set(steps))
    best, other = trials[0], next(t for t in trials if Path(t["run_dir"]).name == half[0].name)
    for trial in (best, other):
        alone = paceline(*shlex.split(trial["command"])[1:], cwd=tmp_path)
        assert alone.last_line["state_sha256"] == trial["state_sha256"], alone


def test_asha_stops_the_worse_trials_and_a_search_without_it_finishes_them(tmp_path: Path) -> None:
    flags = ("search", "smoke", *FLAGS, "--json")
    first = paceline(*flags, "--max-concurrent", "1", cwd=tmp_path, timeout_s=300.0)
    trials = trials_of(first)
    assert {trial["state"] for trial in trials} == {"finished", "stopped"}
    again = paceline(*flags, cwd=tmp_path)  # nothing is left to do
    assert trials_of(again) == trials
    listed = paceline("runs", "search", cwd=tmp_path)
    assert listed.out.count("resume smoke-") == sum(t["state"] == "stopped" for t in trials)
    every = paceline(*flags, "--scheduler", "none", cwd=tmp_path, timeout_s=300.0)
    finished = trials_of(every)
    assert [trial["state"] for trial in finished] == ["finished"] * 4
    digests = {trial["number"]: trial["state_sha256"] for trial in finished}
    assert len(set(digests.values())) == 4
    assert all(digests[t["number"]] == t["state_sha256"] for t in trials if t["state_sha256"])
    report = paceline("report", finished[0]["run_dir"], "-o", "page.html", cwd=tmp_path)
    assert report.code == 0, report.err


def test_what_no_trial_can_train_is_one_line_and_a_diverged_trial_is_a_row(tmp_path: Path) -> None:
    flags = ("--data.validation", "48", "--trials", "2", "--search-dir", "search")
    ended = paceline(
        *("search", "smoke", *flags, "--data.source", "cifar10", "--data.dir", "nothing"),
        *("--over", "schedule.rate=0.1,0.2"),
        cwd=tmp_path,
    )
    assert ended.code == 2
    assert re.search(r"^paceline: trial \d: .*nothing", ended.err.splitlines()[-1]), ended.err
    assert "Traceback" not in ended.err
    over = ("--over", "schedule.rate=0.05,1e20")
    flags = ("--data.validation", "48", "--search-dir", "other", "--json")
    ended = paceline("search", "smoke", *flags, *over, cwd=tmp_path, timeout_s=300.0)
    trials = trials_of(ended)
    assert [(trial["settings"]["schedule.rate"], trial["state"]) for trial in trials] == [
        (0.05, "finished"),
        (1e20, "failed"),
    ]
    assert "diverged" in trials[1]["note"]


def test_a_search_on_a_cluster_of_two_nodes_has_the_same_digests(
    tmp_path: Path, monkeypatch: Any
) -> None:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    node = {"num_cpus": 1, "object_store_memory": 150_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        cluster.add_node(**node)
        flags = ("search", "smoke", *FLAGS, "--trials", "2", "--scheduler", "none", "--json")
        there = paceline(*(*flags, "--ray.address", cluster.address), cwd=tmp_path, timeout_s=300.0)
    finally:
        cluster.shutdown()
    for trial in trials_of(there):
        alone = paceline(*shlex.split(trial["command"])[1:], "--workers", "2", cwd=tmp_path)
        assert alone.last_line["state_sha256"] == trial["state_sha256"], alone


def test_a_search_in_remote_storage_has_its_runs_and_its_page_there(
    folder: str, tmp_path: Path
) -> None:
    flags = ("search", "smoke", *FLAGS[:-1], folder, "--trials", "2", "--scheduler", "none")
    ended = paceline(*flags, "--json", cwd=tmp_path, timeout_s=300.0)
    trials = trials_of(ended)
    assert [trial["state"] for trial in trials] == ["finished"] * 2
    assert {"search.json", "search.html"} <= set(Store(folder).files())
    again = paceline(*flags, "--json", cwd=tmp_path)
    assert "2 of 2 trials" in again.out
    assert trials_of(again) == trials
    assert paceline("runs", folder, cwd=tmp_path).out.count("finished") == 2
    assert not (tmp_path / "s3:").exists()


def test_a_node_that_does_not_see_the_search_folder_says_what_to_do() -> None:
    job = Job(get_recipe("smoke"), Place())
    outcome = train_trial(1, job, "/", "/no/such", judge=None)
    assert outcome.kind == "refused"
    assert "does not see /no/such; pass a --search-dir that all nodes see" in outcome.reason
