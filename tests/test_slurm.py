"""Slurm: the cluster from its variables, and trainings as tasks of a real cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.slurm_cluster import WHY_NOT, SlurmCluster, slurm_cluster

from helpers import metrics_of, paceline, program, result_of, wait_until, write_own_code
from paceline.errors import UserError
from paceline.places import kubernetes, slurm

SRUN = ("srun", "--nodes", "2", "--export", "ALL")
EXAMPLE = Path(__file__).parents[1] / "examples" / "slurm.sbatch"


# ---- the variables


def step(**changes: str) -> dict[str, str]:
    """The variables of the second of three tasks on two nodes."""
    return {
        "SLURM_JOB_ID": "42",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
    } | changes


@pytest.fixture
def scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's own command, for the nodes n1 at 10.0.0.1 and n2 at 10.0.0.2."""
    answers = {
        "hostnames": "n1\nn2\n",
        "node": "NodeName=n1 Arch=x NodeAddr=10.0.0.1 Port=1\nNodeName=n2 NodeAddr=10.0.0.2 X=1\n",
    }
    monkeypatch.setattr(slurm, "_show", lambda what, nodes, *options: answers[what])


@pytest.mark.parametrize(
    ("text", "counts"), [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2])]
)
def test_the_short_form_of_tasks_per_node(text: str, counts: list[int]) -> None:
    assert slurm.tasks_per_node(text) == counts


@pytest.mark.usefixtures("scontrol")
def test_every_task_has_the_address_of_its_node_and_a_port_of_its_own() -> None:
    cluster = slurm.find_cluster(step(), 0)
    first = 10_000 + 42 * 7 * 22
    addresses = f"10.0.0.1:{first}", f"10.0.0.1:{first + 1}", f"10.0.0.2:{first}"
    assert (cluster.addresses, cluster.index, cluster.is_chief) == (addresses, 1, False)


@pytest.mark.usefixtures("scontrol")
def test_tasks_may_be_distributed_in_turn() -> None:
    cluster = slurm.find_cluster(step(SLURM_DISTRIBUTION="cyclic"), 0)
    assert [each.split(":")[0][-1] for each in cluster.addresses] == ["1", "2", "1"]


@pytest.mark.usefixtures("scontrol")
def test_steps_of_a_job_and_neighbouring_jobs_have_other_ports() -> None:
    environments = [
        step(SLURM_JOB_ID=job, SLURM_STEP_ID=number)
        for job in ("42", "43")
        for number in ("0", "1", "6")
    ]
    ports = [slurm.find_cluster(each, 0).addresses[0].split(":")[1] for each in environments]
    assert len(set(ports)) == len(ports)


@pytest.mark.usefixtures("scontrol")
def test_with_parameter_servers_the_first_task_leads_and_the_last_serve() -> None:
    roles = [slurm.find_cluster(step(SLURM_PROCID=str(task)), 1).name for task in range(3)]
    assert roles == ["chief", "worker 0", "ps 0"]
    with pytest.raises(UserError, match="start 4 tasks or more"):
        slurm.find_cluster(step(), 2)


@pytest.mark.parametrize(
    ("visible", "more", "expected"),
    [
        ("0,1,2,3", {}, "2,3"),
        ("0,1,2,3", {"SLURM_GPUS_PER_TASK": "4"}, "0,1,2,3"),
        ("5", {}, "5"),
        ("", {}, ""),
    ],
)
def test_tasks_of_a_node_share_its_gpus(visible: str, more: dict[str, str], expected: str) -> None:
    environment = step(CUDA_VISIBLE_DEVICES=visible, **more)
    slurm._share_gpus(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == expected


def test_only_several_tasks_of_a_step_are_the_place_slurm() -> None:
    assert slurm.in_a_step(step())
    assert not slurm.in_a_step(step(SLURM_STEP_NUM_TASKS="1")), "an interactive shell"
    assert not slurm.in_a_step({"SLURM_JOB_ID": "42", "SLURM_PROCID": "0"}), "a batch script"


def test_outside_an_allocation_is_one_line(tmp_path: Path) -> None:
    ended = paceline("train", "smoke", "--on", "slurm", cwd=tmp_path)
    assert ended.code == 2
    assert "srun -n N paceline train" in ended.err
    assert len(ended.err.splitlines()) == 1


def pod(**changes: str) -> dict[str, str]:
    names = {kubernetes.INDEX: "1", kubernetes.SERVICE: "trainer", kubernetes.COUNT: "3"}
    return names | changes


def test_pods_of_an_indexed_job_find_each_other_by_the_headless_service() -> None:
    cluster = kubernetes.find_cluster(pod(), "cifar-1", 0)
    addresses = tuple(f"cifar-{i}.trainer:2222" for i in range(3))
    assert (cluster.addresses, cluster.index) == (addresses, 1)
    assert kubernetes.find_cluster(pod(), "cifar-1.trainer.default.svc", 1).name == "worker 0"


@pytest.mark.parametrize(
    ("changes", "hostname", "words"),
    [
        ({kubernetes.COUNT: "1"}, "cifar-1", "must be the number of pods"),
        ({}, "cifar-2", "must end with its number, -1"),
        ({kubernetes.COUNT: "²"}, "cifar-1", "must be a whole number"),
        ({kubernetes.INDEX: ""}, "cifar-1", "must be a whole number"),
    ],
)
def test_wrong_variables_of_a_pod_are_one_line(
    changes: dict[str, str], hostname: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        kubernetes.find_cluster(pod(**changes), hostname, 0)


# ---- a real cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        yield running


def srun(cluster: SlurmCluster, tasks: int, *flags: str, cwd: Path) -> Any:
    command = (*SRUN, "-n", str(tasks), sys.executable, "-m", "paceline")
    arguments = ("train", "smoke", "--run-dir", "run", *flags)
    return program(*arguments, cwd=cwd, environment=cluster.environment, command=command)


def test_two_tasks_of_srun_give_the_bits_of_one_process_and_one_shows_progress(
    cluster: SlurmCluster, uninterrupted: Path, tmp_path: Path
) -> None:
    with srun(cluster, 2, cwd=tmp_path) as running:
        ended = running.wait()
    assert ended.code == 0, ended
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert ended.out.count("step=24") == 1


@pytest.mark.long
def test_a_chief_two_workers_and_a_parameter_server_give_the_same_bits(
    cluster: SlurmCluster, uninterrupted: Path, tmp_path: Path
) -> None:
    with srun(cluster, 4, "--ps", "1", cwd=tmp_path) as running:
        ended = running.wait()
    assert ended.code == 0, ended
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("tasks", "flags", "words"),
    [
        (5, (), "replicas"),
        (2, ("--workers", "4"), "leave out --workers"),
        (2, ("--ps", "1"), "or more"),
    ],
)
def test_what_cannot_work_is_one_line(
    tasks: int, flags: tuple[str, ...], words: str, cluster: SlurmCluster, tmp_path: Path
) -> None:
    with srun(cluster, tasks, *flags, cwd=tmp_path) as running:
        ended = running.wait()
    assert ended.code == 2
    assert words in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.long
def test_a_run_folder_that_only_the_chief_sees_is_one_line(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    own_folder = "mkdir -p $SLURM_PROCID && cd $SLURM_PROCID"
    script = f"{own_folder} && {sys.executable} -m paceline train smoke --run-dir run"
    with program(
        cwd=tmp_path,
        environment=cluster.environment,
        command=(*SRUN, "-n", "2", "bash", "-c", script),
    ) as running:
        ended = running.wait()
    assert ended.code != 0
    assert "this node does not see the run folder" in ended.err


@pytest.mark.long
def test_a_killed_task_ends_the_step_and_the_same_command_continues(
    cluster: SlurmCluster, uninterrupted: Path, tmp_path: Path
) -> None:
    own = write_own_code(tmp_path)
    with srun(cluster, 2, "--actions", f"{own}:wait_for_a_signal", cwd=tmp_path) as running:
        wait_until((tmp_path / "reached").exists)
        os.kill(running.workers()[-1], signal.SIGKILL)
        assert running.wait().code != 0
    with srun(cluster, 2, cwd=tmp_path) as running:
        assert running.wait().code == 0
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.long
def test_a_batch_job_near_its_time_limit_saves_and_the_requeued_job_finishes(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Slurm starts a requeued job two minutes later."""
    own = write_own_code(tmp_path)
    flags = ["smoke", "--run-dir", str(tmp_path / "run")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = subprocess.run(
        [
            "sbatch",
            "--parsable",
            "--cpus-per-task=1",
            "--time=5",
            "--export=ALL",
            f"--output={tmp_path}/out.txt",
            str(EXAMPLE),
            *flags,
            "--actions",
            f"{own}:wait_for_a_signal",
        ],
        env=os.environ | cluster.environment | {"PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    wait_until((tmp_path / "reached").exists)
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    wait_until(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", job))
    saved = metrics_of(tmp_path / "run")[-1]["step"]
    assert 0 < saved < 24
    wait_until(lambda: "JobState=COMPLETED" in cluster.run("scontrol", "show", "job", job), 280)
    assert result_of(tmp_path / "run")["finished"]
    assert f"resuming at step {saved}" in (tmp_path / "out.txt").read_text()
