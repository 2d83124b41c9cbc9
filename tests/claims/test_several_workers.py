"""Several workers on one machine: the same bits as one, and a restart when one is lost."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fault_runs import evaluations, with_faults
from helpers import (
    WEIGHTS,
    Ended,
    digest_of,
    free_addresses,
    paceline,
    program,
    result_of,
    tf_config,
    wait_until,
    write_own_code,
)
from in_process import paceline_here
from kernel_checks import needs_kernels


def test_several_workers_give_the_same_bits_as_one(uninterrupted: Path, tmp_path: Path) -> None:
    """Two are compared below: of several devices each, of a TF_CONFIG, and resumed by one."""
    digest = digest_of(tmp_path, "run", "--workers", "3")
    assert digest == result_of(uninterrupted)["state_sha256"]
    assert evaluations(tmp_path / "run") == evaluations(uninterrupted)
    assert [each["test_count"] for each in evaluations(tmp_path / "run")] == [131.0] * 3, (
        "every example is counted once"
    )
    assert (tmp_path / "run" / "worker-1.log").exists()


def test_a_run_of_two_workers_resumes_with_one(uninterrupted: Path, tmp_path: Path) -> None:
    digest_of(tmp_path, "run", "--workers", "2", "--stop-at", "5")
    ended = paceline_here("train", "smoke", "--run-dir", "run", cwd=tmp_path)
    assert "resuming at step 5" in ended.out
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def listening(pid: int) -> set[str]:
    """The addresses at which a process listens, as in /proc/net/tcp."""
    files = Path(f"/proc/{pid}/fd")
    own = {os.path.realpath(each) for each in files.iterdir()}
    tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and f"{files}/socket:[{row[9]}]" in own}


@pytest.mark.slow
def test_workers_on_one_machine_open_no_port(tmp_path: Path) -> None:
    write_own_code(tmp_path)
    flags = ("--run-dir", "run", "--workers", "2", "--actions", "own.py:slowly")
    with program("train", "smoke", *flags, cwd=tmp_path) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running())
        assert [listening(pid) for pid in running.workers()] == [set(), set()]
    with socket.create_server(("127.0.0.1", 0)):
        assert listening(os.getpid()), "it would be noticed"


def test_averaged_weights_give_the_same_bits_on_one_and_several_workers(
    averaged: Path, tmp_path: Path
) -> None:
    digest = digest_of(tmp_path, "several", *WEIGHTS, "--workers", "2")
    assert digest == result_of(averaged)["state_sha256"]
    one, several = evaluations(averaged), evaluations(tmp_path / "several")
    assert one == several
    assert {each["test_count"] for each in one} == {131.0}


@pytest.mark.slow
def test_two_workers_of_two_devices_each_give_the_same_bits(
    uninterrupted: Path, tmp_path: Path
) -> None:
    environment = with_faults(LOGICAL_DEVICES="2", DEVICES_FOLDER=str(tmp_path))
    digest = digest_of(tmp_path, "run", "--workers", "2", environment=environment)
    assert digest == result_of(uninterrupted)["state_sha256"]
    in_sync = [(tmp_path / f"devices-{worker}").read_text() for worker in (0, 1)]
    assert in_sync == ["4", "4"], "by the strategy"


@needs_kernels
def test_workers_that_would_compute_other_bits_are_told_at_the_start(tmp_path: Path) -> None:
    environment = with_faults(PRETENDED="1 environment PACELINE_NO_KERNELS")
    words = ("train", "smoke", "--run-dir", "run", "--workers", "2")
    ended = paceline(*words, cwd=tmp_path, environment=environment)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended
    assert "worker 1 (127.0.0.1:" in ended.err
    assert "differs from the chief: bits: " in ended.err
    assert ", kernels: " in ended.err
    assert not (tmp_path / "run").exists(), "nothing began"


def test_a_master_and_a_worker_of_a_tf_config_both_train_and_only_the_chief_writes(
    uninterrupted: Path, tmp_path: Path
) -> None:
    addresses, elsewhere = free_addresses(2), tmp_path / "elsewhere"
    cluster = {"master": addresses[:1], "worker": addresses[1:]}
    elsewhere.mkdir()
    own = tf_config(cluster, "worker")  # tasks may start in any order
    with program("train", "smoke", cwd=elsewhere, environment=own) as follower:
        chief = paceline("train", "smoke", cwd=tmp_path, environment=tf_config(cluster, "master"))
        followed: Ended = follower.wait()
    assert (chief.code, followed.code) == (0, 0), (chief, followed)
    assert chief.err + followed.err == "", "TensorFlow says nothing"
    digest = result_of(uninterrupted)["state_sha256"]
    assert result_of(tmp_path / "run")["state_sha256"] == digest
    assert followed.last_line["state_sha256"] == digest, "every worker ends with the same state"
    assert "2 workers" in chief.out
    assert not list(elsewhere.iterdir()), "only the chief writes"


@pytest.mark.slow
@pytest.mark.parametrize("listens", [False, True])
def test_a_task_that_never_appears_is_blamed_even_if_a_web_server_has_its_port(
    listens: bool, tmp_path: Path
) -> None:
    own, absent = free_addresses(2)
    environment = tf_config({"worker": [own, absent]}, "worker")
    with ExitStack() as stack:
        if listens:
            address = ("127.0.0.1", int(absent.rsplit(":", 1)[1]))
            server = stack.enter_context(HTTPServer(address, BaseHTTPRequestHandler))
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        ended = paceline(
            "train", "smoke", "--start-timeout", "12", cwd=tmp_path, environment=environment
        )
    assert ended.code == 1
    assert f"waiting for worker 1 at {absent}" in ended.out
    assert ended.err.startswith(f"paceline: worker 1 at {absent} failed: no answer as a worker")


@pytest.mark.parametrize(
    ("before", "after"), [("SCHED_OTHER", "SCHED_BATCH"), ("SCHED_IDLE", "SCHED_IDLE")]
)
def test_a_worker_computes_in_long_turns_unless_the_user_chose_otherwise(before, after) -> None:
    from paceline.engines import devices

    def policy() -> int:  # of this thread only
        os.sched_setscheduler(0, getattr(os, before), os.sched_param(0))
        devices._compute_in_long_turns()
        return os.sched_getscheduler(0)

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(policy).result() == getattr(os, after)
