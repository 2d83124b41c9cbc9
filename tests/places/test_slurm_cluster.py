"""Slurm: trainings as tasks of a real cluster of two nodes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.slurm_cluster import WHY_NOT, SlurmCluster, slurm_cluster

from helpers import metrics_of, program, result_of, wait_until, write_own_code

SRUN = ("srun", "--nodes", "2", "--export", "ALL")
EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm.sbatch"


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


@pytest.mark.parametrize(
    ("tasks", "flags"), [(2, ()), pytest.param(4, ("--ps", "1"), marks=pytest.mark.long)]
)
def test_tasks_of_srun_give_the_bits_of_one_process_and_one_shows_progress(
    tasks: int, flags: tuple[str, ...], cluster: SlurmCluster, uninterrupted: Path, tmp_path: Path
) -> None:
    with srun(cluster, tasks, *flags, cwd=tmp_path) as running:
        ended = running.wait()
    assert ended.code == 0, ended
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert ended.out.count("step=24") == 1


@pytest.mark.long
def test_what_cannot_work_is_one_line(cluster: SlurmCluster, tmp_path: Path) -> None:
    with srun(cluster, 5, cwd=tmp_path) as running:
        ended = running.wait()
    assert ended.code == 2
    lines = ended.err.splitlines()
    (line,) = (line for line in lines if not line.startswith(("srun:", "slurmstepd:")))
    assert "only 4 replicas" in line


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
def test_a_batch_job_near_its_time_limit_saves_and_the_requeued_job_finishes(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Slurm starts a requeued job two minutes later."""
    own = write_own_code(tmp_path)
    flags = ["smoke", "--run-dir", str(tmp_path / "run")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    sbatch = ("sbatch", "--parsable", "--cpus-per-task=1", "--time=5", "--export=ALL")
    actions = ("--actions", f"{own}:wait_for_a_signal")
    job = subprocess.run(
        [*sbatch, f"--output={tmp_path}/out.txt", str(EXAMPLE), *flags, *actions],
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
