"""Ray: real clusters of one and several nodes, the same bits as one process, and many faults."""

import json
import os
import runpy
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import tensorflow as tf
from keras.src.utils.naming import reset_uids
from ray.cluster_utils import Cluster

from helpers import (
    SOON_S,
    TIMEOUT_S,
    WEIGHTS,
    digest_of,
    paceline,
    program,
    result_of,
    wait_until,
    write_own_code,
)
from paceline.build import build_core
from paceline.engines.collective import CollectiveEngine
from paceline.engines_more.ray_actors import crew as crew_module
from paceline.engines_more.ray_actors.crew import Crew
from paceline.engines_more.ray_actors.ray_engine import RayEngine
from paceline.errors import UserError
from paceline.experiment.experiment import Sync
from paceline.experiment.recipes.table import get_recipe
from paceline.fingerprint import fingerprint
from paceline.job import Job, Place, Run
from paceline.job import Ray as RayFlags
from paceline.maths.metrics import BlockResult
from paceline.storage.files import unsealed

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, METHODS = 8, ("weights", "gradients")  # the last crew is used by the tests that follow
STORE_BYTES = 150_000_000


class Nodes:
    """A cluster of this test process alone, its driver connected."""

    def __init__(self) -> None:
        quiet = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **quiet})
        self.address = self.cluster.address
        self.second = self.cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two nodes of two CPUs each; four workers are on both."""
    os.environ["RAY_AUTH_MODE"], before = "disabled", os.environ.get("RAY_AUTH_MODE")
    started = Nodes()
    yield started
    ray.shutdown()
    started.cluster.shutdown()
    os.environ.pop("RAY_AUTH_MODE") if before is None else os.environ.update(RAY_AUTH_MODE=before)


def job_of(method: str, workers: int = 4, **flags: Any) -> Job:
    """The recipe smoke, wider."""
    smoke = get_recipe("smoke")
    experiment = replace(
        smoke, model=replace(smoke.model, width=16), sync=Sync(method=method, every=3)
    )
    return Job(
        experiment,
        Place(on="ray", workers=workers, max_restarts=5, ray=RayFlags(**flags)),
        Run(run_dir="unused"),
    )


@cache
def core_of(method: str) -> Any:
    return build_core(job_of(method))


@cache
def expected(method: str) -> tuple[str, dict[str, Any]]:
    """Digest and evaluation of one process."""
    engine = CollectiveEngine(core_of(method), tf.distribute.OneDeviceStrategy("/cpu:0"), 1)
    engine.load(core_of(method).initial_state())
    engine.advance(0, STEPS)
    return engine.state().sha256(), engine.evaluate(final=True)


@pytest.fixture(scope="module")
def crews(nodes: Nodes) -> Iterator[Callable[..., Crew]]:
    """One crew of actors for each method and size, for all tests; killed actors are replaced."""
    made: dict[tuple[str, int], Crew] = {}

    def crew(method: str, workers: int = 4) -> Crew:
        for other in [key for key in made if key != (method, workers)]:
            made.pop(other).close()  # the cluster has room for one crew
        if (method, workers) not in made:
            job = job_of(method, workers)
            made[method, workers] = Crew(job)
            made[method, workers].meet(fingerprint(job, core_of(method)))
        fill(made[method, workers], workers)
        return made[method, workers]

    yield crew
    for each in made.values():
        each.close()


def fill(crew: Crew, workers: int) -> None:
    crew.survivors()
    deadline = time.monotonic() + TIMEOUT_S
    while len(crew.ready) < workers:
        crew.recruit()
        assert not crew.take_in(1.0)
        assert time.monotonic() < deadline, "no replacement came"


def engine_of(method: str, crew: Crew, workers: int = 4, step: int = 0) -> RayEngine:
    engine = RayEngine(job_of(method, workers), core_of(method), crew)
    engine.load(core_of(method).initial_state())
    if step:
        engine.advance(0, step)
    return engine


def train(engine: RayEngine, start: int, stop: int) -> BlockResult:
    """Train to a step; return the last block with the events of all. A loss ends a block early."""
    events: list[str] = []
    while start < stop:
        block = engine.advance(start, stop)
        start, events = block.step, [*events, *block.events]
    return replace(block, events=tuple(events))


def assert_as_expected(engine: RayEngine, method: str, block: BlockResult) -> None:
    digest, evaluation = expected(method)
    assert block.step == STEPS
    assert np.isfinite(block.losses).all()
    assert engine.evaluate(final=True) == evaluation
    assert engine.state().sha256() == digest


TWO_WORKERS = ("--on", "ray", "--workers", "2", "--run-dir", "run")


# --- examples, before the actors of other tests have all CPUs


@pytest.mark.long  # it waits for cores beside the other tests' actors
def test_the_examples_learn(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run in this process, which is connected already."""
    monkeypatch.setattr(ray, "init", lambda: None)

    def run(name: str) -> list[str]:
        reset_uids()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    first, same, second = run("ray_keras_actor.py")
    assert same == "both predict the same: True"
    assert float(second.split(":")[1]) < float(first.split(":")[1])
    first, last = run("ray_weight_averaging.py")
    assert float(last.split(":")[1]) < float(first.split(":")[1]) / 2
    (line,) = run("ray_gradient_averaging.py")
    _, _, slope, _, _, offset = line.split()
    assert abs(float(slope) - 0.1) < 0.02
    assert abs(float(offset) - 0.3) < 0.02


# --- the same bits


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_one_to_four_workers_on_two_nodes_give_the_bits_of_one_process(
    crews: Callable[..., Crew], method: str
) -> None:
    most = 4 if method == "gradients" else 3
    for workers in [count for count in (4, 3, 1) if count <= most]:
        crew = crews(method, most)
        crew.ready, spare = crew.ready[:workers], crew.ready[workers:]
        engine = engine_of(method, crew, most)
        block = engine.advance(0, STEPS)
        assert_as_expected(engine, method, block)
        assert block.num_steps == STEPS
        crew.ready += spare


def test_the_command_with_two_workers_gives_the_bits_of_one_process_and_says_nothing_of_ray(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """And an actor beside them evaluates the checkpoints."""
    ended = paceline("train", "smoke", *TWO_WORKERS, "--ray.evaluator", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, ""), ended
    result = result_of(tmp_path / "run")
    assert result["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    *_, last = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    evaluated = unsealed(json.loads(last))
    for name in ("step", "test_accuracy", "test_loss", "state_sha256"):
        assert evaluated[name] == result[name]
    assert "2 workers" in ended.out
    assert "ray" not in ended.out.lower()


@pytest.mark.long
def test_the_command_with_averaged_weights_gives_the_bits_of_one_process(
    averaged: Path, tmp_path: Path
) -> None:
    digest = digest_of(tmp_path, "run", "--on", "ray", "--workers", "4", *WEIGHTS)
    assert digest == result_of(averaged)["state_sha256"]


# --- faults


PHASES = {
    "is asked": ("", "_ready"),
    "exchanges": ("_peers", "_swap"),
    "already exchanged": ("_peers", "_swap"),
    "already trained": ("_engine", "advance"),
}
"""Phases of a block: what of an actor has the method that runs then."""


def spoil(actor: Any, phase: str, how: str) -> None:
    """Let the actor fail once, the next time that it gets to a phase of a block."""

    def patch(self: Any) -> None:
        part, name = PHASES[phase]
        owner = getattr(self, part) if part else self
        original = getattr(owner, name)

        def fail(*arguments: Any) -> Any:
            setattr(owner, name, original)
            if phase.startswith("already"):
                original(*arguments)
            if how == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("spoiled")

        setattr(owner, name, fail)

    ray.get(actor.__ray_call__.remote(patch))


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("method", "workers"), [("weights", 3)])
def test_an_actor_that_fails_in_any_phase_leaves_the_bits_alone(
    crews: Callable[..., Crew], method: str, workers: int, phase: str
) -> None:
    """In one training: an exception in one actor, then a SIGKILL of the other."""
    crew = crews(method, workers)
    engine = engine_of(method, crew, workers, step=3)
    spoil(crew.ready[1], phase, "exception")
    assert train(engine, 3, 6).events, "nothing failed"
    assert len(crew.ready) == workers
    spoil(crew.ready[0], phase, "SIGKILL")
    block = train(engine, 6, STEPS)
    assert block.events, "nothing failed"
    assert len(crew.ready) == workers - 1
    assert_as_expected(engine, method, block)


def slow_down(actor: Any, seconds: float) -> None:
    """The next exchange takes this long, so that something can happen in it."""

    def patch(self: Any) -> None:
        original = self._peers._swap

        def wait(*arguments: Any) -> Any:
            self._peers._swap = original
            time.sleep(seconds)
            return original(*arguments)

        self._peers._swap = wait

    ray.get(actor.__ray_call__.remote(patch))


@pytest.mark.long
def test_a_node_removed_in_the_middle_and_a_new_one_that_joins(
    nodes: Nodes, crews: Callable[..., Crew]
) -> None:
    crew = crews("gradients")
    engine = engine_of("gradients", crew, step=1)
    for actor in crew.ready:
        slow_down(actor, 4.0)
    remove = threading.Timer(
        0.5, nodes.cluster.remove_node, args=(nodes.second,), kwargs={"allow_graceful": False}
    )
    remove.start()
    events = train(engine, 1, 6).events
    remove.join()
    assert "lost a worker" in events[0]
    assert len(engine._team) < 4
    nodes.second = nodes.add()
    fill(crew, 4)
    block = engine.advance(6, STEPS)
    assert block.events == ("continuing with 4 workers from step 6",)
    assert_as_expected(engine, "gradients", block)


@pytest.mark.slow
def test_a_call_from_before_a_failure_changes_nothing(crews: Callable[..., Crew]) -> None:
    crew = crews("gradients")
    engine = engine_of("gradients", crew, step=1)
    actor, before = crew.ready[0], engine.state().sha256()
    with pytest.raises(RuntimeError, match="a call of attempt 0"):
        ray.get(actor.advance.remote(0, 1, 2, False))
    assert engine.state().sha256() == before


@pytest.mark.long
def test_a_run_whose_driver_is_killed_goes_on(uninterrupted: Path, tmp_path: Path) -> None:
    """By the same command; no actor outlives its driver."""
    flags = (*TWO_WORKERS, "--max-restarts", "0")
    write_own_code(tmp_path)
    waits = ("--actions", "own.py:wait_for_a_signal")
    with program("train", "smoke", *flags, *waits, cwd=tmp_path) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running())
        os.kill(running.worker(), signal.SIGKILL)
        ended = running.wait()
        running.wait_until_gone(SOON_S)  # Ray's agents alone would stay for a minute
    assert ended.code == 1
    again = paceline("train", "smoke", *flags, cwd=tmp_path)
    assert again.code == 0
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


# --- resources


@pytest.mark.long
def test_a_cluster_with_fewer_cpus_than_asked_goes_on_with_the_workers_there_are(
    nodes: Nodes, crews: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    crews("gradients", 2).close()
    monkeypatch.setattr(crew_module, "PLACED_S", 3.0)
    job = job_of("gradients", workers=4, cpus_per_worker=2)  # there is room for two
    crew = Crew(job)
    try:
        crew.meet(fingerprint(job, core_of("gradients")))
        engine = RayEngine(job, core_of("gradients"), crew)
        engine.load(core_of("gradients").initial_state())
        block = engine.advance(0, STEPS)
        assert "2 of 4 workers found a place" in block.events[0]
        assert_as_expected(engine, "gradients", block)
    finally:
        crew.close()


# The last quick test of actors: nobody has to wait for new ones.
@pytest.mark.slow
def test_actors_that_fail_one_after_the_other_leave_the_bits_alone(
    crews: Callable[..., Crew],
) -> None:
    crew = crews("gradients")
    engine = engine_of("gradients", crew, step=2)
    spoil(crew.ready[1], "already exchanged", "exception")
    assert "continuing with 4 workers from step" in train(engine, 2, 4).events[0]
    spoil(crew.ready[1], "exchanges", "SIGKILL")
    assert "continuing with 3 workers from step" in train(engine, 4, 6).events[0]
    ray.kill(engine._team[0])  # between two blocks
    block = train(engine, 6, STEPS)
    spoil(engine._team[0], "is asked", "SIGKILL")  # in an evaluation
    assert_as_expected(engine, "gradients", block)


# --- what people may get wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            ("--ray.gpus-per-worker", "1"),
            "a worker needs 1 CPUs and 1 GPUs, but no node of the Ray cluster has them",
        ),
        (("--ray.cpus-per-worker", "64"), "a worker needs 64 CPUs"),
        (("--ray.address", "ray://127.0.0.1:10001"), "give host:port of the cluster's head"),
        (("--ray.address", "127.0.0.1:1"), "there is no Ray cluster at 127.0.0.1:1"),
        (("--sync.method", "async"), "sync.method async needs parameter servers"),
        (("--workers", "5"), "only 4 replicas to share; use 4 workers or fewer"),
    ],
)
def test_what_cannot_work_on_ray_is_one_line(
    nodes: Nodes, tmp_path: Path, flags: tuple[str, ...], complaint: str
) -> None:
    address = () if "--ray.address" in flags else ("--ray.address", nodes.address)
    ended = paceline(
        "train", "smoke", "--on", "ray", *address, *flags, "--run-dir", "run", cwd=tmp_path
    )
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended
    assert complaint in ended.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_data_that_a_node_cannot_see_names_the_node(nodes: Nodes, tmp_path: Path) -> None:
    job = job_of("gradients", workers=1, cpus_per_worker=0)
    missing = replace(
        job.experiment,
        data=replace(job.experiment.data, source="cifar10", dir=str(tmp_path / "nowhere")),
    )
    other = replace(job, experiment=missing)
    crew = Crew(other)
    with pytest.raises(UserError, match=rf"on {os.uname().nodename}: .*nowhere"):
        crew.meet(fingerprint(job, core_of("gradients")))
    crew.close()
