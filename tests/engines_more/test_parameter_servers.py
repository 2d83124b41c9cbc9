"""Parameter servers: the same bits as one process, lost workers, and bounded staleness."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_runs import evaluations, with_faults
from helpers import (
    SUPPORT,
    TIMEOUT_S,
    Program,
    digest_of,
    free_addresses,
    losses_of,
    metrics_of,
    program,
    result_of,
    train_smoke,
    wait_until,
)
from in_process import paceline_here
from paceline.engines_more.parameter_server.asynchronous import Flights
from paceline.engines_more.parameter_server.ps_engine import check_ops, check_servers
from paceline.errors import UserError
from tiny import SHAPE, build_source, build_tiny_core, dense_model

EVERYTHING = (
    *("--optimizer.name", "adamw", "--optimizer.clip-norm", "0.5"),
    *("--average.decay", "0.9", "--schedule.rate", "0.01"),
)

ACTIONS = '''
"""What the chief does after a block, for tests."""
import os
import time
from pathlib import Path

HERE = Path(__file__).parent


def pause(step, metrics):
    """Stand still after the first block that ends at step 5 or later, until the test says go."""
    if step >= 5 and not (HERE / "go").exists():
        (HERE / "reached").write_text(str(os.getpid()))
        while not (HERE / "go").exists():
            time.sleep(0.02)
'''


def digest_of_one_process(folder: Path, *flags: str) -> str:
    ended = paceline_here("train", "smoke", "--run-dir", "one", *flags, cwd=folder)
    assert ended.code == 0, ended
    return ended.last_line["state_sha256"]


class Tasks:
    """The tasks of a TF_CONFIG cluster, each a `paceline train smoke`; the exit kills the rest."""

    def __init__(self, folder: Path, chief: str, workers: int, servers: int, *flags: str) -> None:
        self._folder, self._flags = folder, flags
        (folder / "acts.py").write_text(ACTIONS)
        addresses = free_addresses(1 + workers + servers)
        self.cluster = {
            chief: addresses[:1],
            "worker": addresses[1 : 1 + workers],
            "ps": addresses[1 + workers :],
        }
        self._stack = ExitStack()

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, role: str, index: int, monkeypatch: pytest.MonkeyPatch) -> Program:
        task = {"type": role, "index": index}
        config = {"cluster": self.cluster, "task": task, "model_dir": "run"}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        return self._stack.enter_context(program("train", "smoke", *self._flags, cwd=self._folder))

    def start_until_paused(self, monkeypatch: pytest.MonkeyPatch) -> list[Program]:
        """Worker 0, the parameter server and the chief, which stands still after a block."""
        started = [self.start(role, 0, monkeypatch) for role in ("worker", "ps", "chief")]
        reached = self._folder / "reached"
        wait_until(lambda: reached.exists() or not started[-1].is_running())
        return started


# Slices and staleness, without processes


@given(st.integers(-1, 9), st.integers(1, 6), st.sampled_from([1, 2, 4]), st.integers(0, 2**32))
def test_no_gradient_is_staler_than_the_bound_whatever_arrives_when(
    bound: int, workers: int, side_by_side: int, seed: int
) -> None:
    choose = random.Random(seed)
    side_by_side = min(side_by_side, bound + 1) if bound >= 0 else side_by_side
    side_by_side = 2 ** (side_by_side.bit_length() - 1)
    flights, under_way, ticket, stalest = Flights(bound), list[tuple[list[int], int]](), 0, 0
    for _ in range(200):
        while len(under_way) < workers and flights.may_start(side_by_side):
            tickets = list(range(ticket, ticket + side_by_side))
            ticket += side_by_side
            for each in tickets:
                flights.start(each)
            # weights are read at the start at the earliest
            under_way.append((tickets, flights.applied))
        assert under_way, "nothing is under way, and nothing may start"
        tickets, version = under_way.pop(choose.randrange(len(under_way)))
        for each in choose.sample(tickets, len(tickets)):
            stalest = max(stalest, flights.applied - version)
            flights.land(each)
    assert flights.applied == 200 * side_by_side
    if bound >= 0:
        assert stalest <= bound


def test_more_parameter_servers_than_parameters_is_one_clear_line() -> None:
    core = build_tiny_core(model=dense_model())
    check_servers(core, 1930)
    with pytest.raises(UserError, match="1931 parameter servers for 1930 parameters; give 1930"):
        check_servers(core, 1931)


def test_data_read_by_python_are_refused_and_tensorflow_ops_are_not() -> None:
    import tensorflow as tf

    from paceline.data.source import Split

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        black = tf.numpy_function(
            lambda i: np.zeros((len(i), *SHAPE), np.uint8), [indices], tf.uint8
        )
        return tf.ensure_shape(black, [None, *SHAPE]), tf.zeros_like(indices, tf.int32)

    check_ops(build_tiny_core())
    good = build_source()
    with pytest.raises(UserError, match=r"read by Python code .* cannot be sent to the workers"):
        check_ops(build_tiny_core(source=replace(good, train=Split(50, read))))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "updates"), [("gradients", 6), ("async", 24)])
def test_a_late_result_on_one_server_is_not_counted_and_what_it_displaced_is_computed_again(
    method: str, updates: int
) -> None:
    command = [sys.executable, SUPPORT / "late_results.py", method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["refused"] > 0
    assert told["applied"] == updates
    assert len(set(told["digests"])) == 1
    if method == "gradients":  # a worker with two devices uses both, as it would use GPUs
        assert len(told["digests"]) == 3
        assert told["devices"] == ["CPU:0", "CPU:1"]


# The real program


def test_two_replicas_on_two_parameter_servers_with_every_part_of_the_update(
    tmp_path: Path,
) -> None:
    flags = (*EVERYTHING, "--replicas", "2", "--epochs", "1")
    one = digest_of_one_process(tmp_path, *flags)
    assert one == digest_of(tmp_path, "two", *flags, "--ps", "2")


@pytest.mark.long
def test_one_replica_that_is_never_stale_gives_the_bits_of_synchronous_training(
    tmp_path: Path,
) -> None:
    flags = (*EVERYTHING, "--replicas", "1", "--epochs", "1")
    never_stale = ("--sync.method", "async", "--sync.max-staleness", "0", "--ps", "1")
    one = digest_of_one_process(tmp_path, *flags)
    assert one == digest_of(tmp_path, "two", *flags, *never_stale)
    assert {record["staleness_max"] for record in metrics_of(tmp_path / "two")} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--chief-trains",)])
def test_asynchronous_training_keeps_the_bound_and_shows_staleness(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    flags = ("--sync.method", "async", "--sync.max-staleness", "2", "--workers", "2", "--ps", "1")
    flags += more
    ended = train_smoke(tmp_path, "run", *flags)
    assert ended.code == 0, ended
    records = metrics_of(tmp_path / "run")
    assert records[-1]["step"] == 24
    assert all(0 <= record["staleness_mean"] <= record["staleness_max"] <= 2 for record in records)
    stalest = [record["staleness_max"] for record in records]
    assert max(stalest) > 0, "two workers at once are stale at times"
    assert [step for step, _ in losses_of(tmp_path / "run")] == list(range(1, 25))
    assert [value for _, value in losses_of(tmp_path / "run", "staleness_max")] == stalest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "found"), [((), "3 workers + 1 ps"), (("--ignore-ps",), "3 workers ·")]
)
def test_tasks_of_a_tf_config_started_in_any_order_give_the_same_bits_and_end_together(
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    found: str,
) -> None:
    """A master trains, with parameter servers and without."""
    with Tasks(tmp_path, "master", 2, 1, *flags) as tasks:
        order = [("worker", 1), ("master", 0), ("worker", 0), ("ps", 0)]
        ended = [running.wait() for running in [tasks.start(*task, monkeypatch) for task in order]]
    assert [each.code for each in ended] == [0] * 4, ended
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert found in ended[1].out


@contextmanager
def paused(folder: Path, *flags: str) -> Iterator[Program]:
    """A run that stands still after a block in the second half of the first epoch."""
    (folder / "acts.py").write_text(ACTIONS)
    with program(
        "train", "smoke", "--run-dir", "run", "--actions", "acts.py:pause", *flags, cwd=folder
    ) as running:
        wait_until(lambda: (folder / "reached").exists() or not running.is_running())
        assert running.is_running(), running.wait()
        yield running


@pytest.mark.slow
def test_a_run_goes_on_with_servers_that_lose_a_worker_and_again_without_to_the_same_bits(
    uninterrupted: Path, stopped_at_5: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(stopped_at_5, tmp_path / "run"))
    with paused(tmp_path, "--workers", "2", "--ps", "1", "--stop-at", "17") as running:
        before = running.workers()
        os.kill(before[2], signal.SIGKILL)
        (tmp_path / "go").touch()
        ended = running.wait()
    assert ended.code == 0, ended
    assert "resuming at step 5" in ended.out
    assert "worker 1 failed: killed by SIGKILL" in ended.out
    assert "starting it again, the others continue" in ended.out
    assert "from the last checkpoint" not in ended.out
    assert result_of(run)["step"] == 17
    logs = {log.name for log in run.glob("*.log")}
    assert logs == {"chief.log", "worker-0.log", "worker-1.log", "ps-0.log"}
    alone = paceline_here("train", "smoke", "--run-dir", "run", cwd=tmp_path)
    assert "resuming at step 17" in alone.out
    assert evaluations(run) == evaluations(uninterrupted), "two of three are the servers'"
    assert result_of(run)["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert losses_of(run) == losses_of(uninterrupted)


@pytest.mark.slow
def test_a_lost_parameter_server_ends_a_tf_config_cluster_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tasks(tmp_path, "chief", 1, 1, "--actions", "acts.py:pause") as tasks:
        worker, server, chief = tasks.start_until_paused(monkeypatch)
        os.kill(server.worker(), signal.SIGKILL)
        (tmp_path / "go").touch()
        ended = [each.wait() for each in (chief, server, worker)]
    assert [each.code for each in ended] == [1, 1, 1], ended
    assert (
        f"the state is lost with the parameter server {tasks.cluster['ps'][0]}, which is gone"
        in ended[0].err
    )
    assert "ps 0 failed: killed by SIGKILL" in ended[1].err
    assert f"the chief at {tasks.cluster['chief'][0]} is gone" in ended[2].err


# Long: every role is lost, at any time, in any way


PLACE = {"chief": 0, "worker": 1, "ps": 3}  # in the order in which `--workers 2 --ps 2` starts them


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("role", "when", "how"),
    [
        ("chief", "between", signal.SIGSTOP),
        ("worker", "starting", signal.SIGKILL),
        ("worker", "running", signal.SIGSTOP),
        ("ps", "between", signal.SIGKILL),
    ],
)
def test_whoever_is_lost_the_run_ends_with_the_same_bits(
    uninterrupted: Path, tmp_path: Path, role: str, when: str, how: signal.Signals
) -> None:
    (tmp_path / "acts.py").write_text(ACTIONS)
    flags = ("--workers", "2", "--ps", "2", "--actions", "acts.py:pause")
    flags += ("--stall-timeout", "20", "--start-timeout", "60")
    with program("train", "smoke", "--run-dir", "run", *flags, cwd=tmp_path) as running:
        if when == "starting":
            wait_until(lambda: len(running.workers()) == 5)
            os.kill(running.workers()[PLACE[role]], how)
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running(), 250)
        pids = running.workers()
        if when == "running":
            (tmp_path / "go").touch()
        if when != "starting":
            with suppress(ProcessLookupError):  # the run may have ended before
                os.kill(pids[PLACE[role]], how)
        (tmp_path / "go").touch()
        ended = running.wait(350)
    assert ended.code == 0, ended
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert evaluations(tmp_path / "run") == evaluations(uninterrupted)
    assert losses_of(tmp_path / "run") == losses_of(uninterrupted)
    if when == "between" and role != "worker":
        assert "from the last checkpoint" in ended.out


@pytest.mark.long
@pytest.mark.parametrize(("workers", "comes_back"), [(1, True), (2, False)])
def test_a_killed_worker_of_a_tf_config_is_taken_back_or_done_without(
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    comes_back: bool,
) -> None:
    with Tasks(tmp_path, "chief", workers, 1, "--actions", "acts.py:pause") as tasks:
        others = [tasks.start("worker", index, monkeypatch) for index in range(1, workers)]
        lost, server, chief = tasks.start_until_paused(monkeypatch)
        os.kill(lost.worker(), signal.SIGKILL)
        assert "worker 0 failed: killed by SIGKILL" in lost.wait().err
        others += [tasks.start("worker", 0, monkeypatch)] if comes_back else []
        (tmp_path / "go").touch()
        ended = [each.wait() for each in (chief, server, *others)]
    assert [each.code for each in ended] == [0, 0, 0], ended
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.long
def test_when_the_chief_of_a_tf_config_is_killed_everyone_ends_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tasks(tmp_path, "chief", 1, 1, "--actions", "acts.py:pause") as tasks:
        worker, server, chief = tasks.start_until_paused(monkeypatch)
        os.kill(chief.worker(), signal.SIGKILL)
        ended = [each.wait() for each in (chief, server, worker)]
    assert [each.code for each in ended] == [1, 1, 1], ended
    assert "chief failed: killed by SIGKILL" in ended[0].err
    for each in ended[1:]:
        assert f"the chief at {tasks.cluster['chief'][0]} is gone" in each.err


@pytest.mark.long
def test_a_parameter_server_whose_chief_never_comes_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tasks(tmp_path, "chief", 1, 1, "--start-timeout", "15") as tasks:
        ended = tasks.start("ps", 0, monkeypatch).wait(60)
    assert ended.code == 1
    assert f"no answer from {tasks.cluster['chief'][0]} within 15 s" in ended.err


@pytest.mark.long
def test_an_asynchronous_run_stops_and_goes_on(tmp_path: Path) -> None:
    flags = ("--sync.method", "async", "--workers", "2", "--ps", "1")
    assert train_smoke(tmp_path, "run", *flags, "--stop-at", "13").code == 0
    assert result_of(tmp_path / "run")["step"] == 13
    assert "resuming at step 13" in train_smoke(tmp_path, "run", *flags).out
    assert result_of(tmp_path / "run")["finished"]
    assert [step for step, _ in losses_of(tmp_path / "run")] == list(range(1, 25))


@pytest.mark.long
def test_any_number_of_workers_and_servers_gives_the_same_bits(tmp_path: Path) -> None:
    flags, cluster = ("--replicas", "8", "--epochs", "1"), ("--workers", "5", "--ps", "3")
    one = digest_of_one_process(tmp_path, *flags)
    assert one == digest_of(tmp_path, "two", *flags, *cluster)


@pytest.mark.slow
def test_tasks_that_would_compute_other_bits_are_refused_at_the_start(tmp_path: Path) -> None:
    environment = with_faults(PRETENDED="ps-0 keras 3.0.0")
    ended = train_smoke(tmp_path, "run", "--workers", "1", "--ps", "1", environment=environment)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended
    assert re.search(r"ps 0 \(127\S+\) differs from the chief: libraries\.keras: ", ended.err)
    assert not (tmp_path / "run").exists(), "nothing began"
