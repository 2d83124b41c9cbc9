"""deploy/ where something else than Kubernetes starts the workers: KubeRay, the Spark operator and
SkyPilot. What they would start runs here: a Ray cluster, spark-submit, machines with a bucket."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from benchmarks.link import why_not

from helpers import Program, program, result_of, wait_until, write_own_code
from pods import DEPLOY, HERE, address_of, network, objects, read, smaller
from s3_server import server

PACKAGE = "local:///opt/paceline/lib/python3.11/site-packages/paceline/"
STARTED_S = 240  # Ray and Spark start slowly on busy cores
ACTIVATED = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
WAIT = """
import time
from pathlib import Path

HERE = Path(__file__).parent


def wait_for_go(step, metrics):
    (HERE / "reached").write_text(str(step))
    while not (HERE / "go").exists():
        time.sleep(0.02)
"""


def waiting(folder: Path) -> list[str]:
    """Flags of a training that waits after its first block until the file `go` is there."""
    (folder / "wait.py").write_text(WAIT)
    return ["--actions", f"{folder / 'wait.py'}:wait_for_go"]


def wait_for_the_first_block(running: Program, folder: Path) -> None:
    reached = folder / "reached"
    wait_until(lambda: reached.exists() or not running.is_running(), STARTED_S)
    assert reached.exists(), running.wait()


def rayjob() -> tuple[list[str], int, list[int]]:
    """The entrypoint, the CPUs of the head, and those of each worker pod of deploy/rayjob."""
    spec = objects("rayjob")["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    cpus = [
        int(group["rayStartParams"]["num-cpus"])
        for group in cluster["workerGroupSpecs"]
        for _ in range(group["replicas"])
    ]
    head = int(cluster["headGroupSpec"]["rayStartParams"]["num-cpus"])
    return shlex.split(spec["entrypoint"])[1:], head, cpus


def spark_application() -> tuple[str, str, list[str]]:
    """The master with as many executors as deploy/spark asks for, its script and arguments."""
    spec = objects("spark")["SparkApplication"]["spec"]
    executor, script = spec["executor"], spec["mainApplicationFile"]
    assert script.startswith(PACKAGE)
    import paceline

    own = Path(paceline.__file__).parent / script.removeprefix(PACKAGE)
    assert own.exists()
    master = f"local-cluster[{executor['instances']},{executor['cores']},512]"
    return master, str(own), spec["arguments"]


def test_the_entrypoint_of_the_rayjob_and_the_script_of_spark_are_commands_of_paceline() -> None:
    entrypoint, head, cpus = rayjob()
    assert head + sum(cpus) >= int(entrypoint[entrypoint.index("--workers") + 1])
    for words in (entrypoint, spark_application()[2]):
        dry = subprocess.run(
            [sys.executable, "-m", "paceline", *words[:2], "--help"], capture_output=True, text=True
        )
        assert dry.returncode == 0
        for flag in (word for word in words if word.startswith("--")):
            assert flag in dry.stdout, flag


@pytest.mark.long
def test_the_rayjob_loses_a_pod_gets_a_new_one_and_has_the_bits_of_one_process(
    uninterrupted: Path, tmp_path: Path
) -> None:
    from ray.cluster_utils import Cluster

    entrypoint, head, cpus = rayjob()
    small = {"object_store_memory": 150_000_000}
    first = {"num_cpus": head, "include_dashboard": False, **small}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        pods = [cluster.add_node(num_cpus=each, **small) for each in cpus]
        settings: dict[str, Any] = {"environment": {"RAY_ADDRESS": cluster.address}}
        words = [*smaller(entrypoint, tmp_path), *waiting(tmp_path)]
        with program(*words, cwd=tmp_path, **settings) as running:
            wait_for_the_first_block(running, tmp_path)
            cluster.remove_node(pods[0], allow_graceful=False)
            cluster.add_node(num_cpus=cpus[0], **small)
            (tmp_path / "go").touch()
            ended = running.wait(STARTED_S)
    finally:
        cluster.shutdown()
    assert ended.code == 0, ended
    result = result_of(tmp_path / "runs" / "cifar10")
    assert result["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("java"), reason="Spark needs Java")
def test_the_spark_application_loses_an_executor_and_has_the_bits_of_one_process(
    uninterrupted: Path, tmp_path: Path
) -> None:
    master, script, arguments = spark_application()
    submit = str(Path(sys.executable).with_name("spark-submit"))
    words = [*smaller(arguments, tmp_path), *waiting(tmp_path)]
    memory = ("--conf", "spark.executor.memory=512m")
    command = (submit, "--master", master, *memory, script)
    environment = ACTIVATED | {"PYSPARK_PYTHON": sys.executable}
    with program(*words, cwd=tmp_path, command=command, environment=environment) as running:
        wait_for_the_first_block(running, tmp_path)
        os.kill(running.find("CoarseGrainedExecutorBackend")[0], signal.SIGKILL)
        (tmp_path / "go").touch()
        ended = running.wait(STARTED_S)
    assert ended.code == 0, ended
    result = result_of(tmp_path / "runs" / "cifar10")
    assert result["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def machine(stack: ExitStack, number: int, folder: Path, s3: str, *flags: str) -> Program:
    """Run the task of deploy/skypilot on a machine of its own, as SkyPilot starts it."""
    task = read(DEPLOY / "skypilot" / "task.yaml")[0]
    run = task["run"].replace('cifar10-fast --data.dir "$BUCKET/data"', "smoke")
    script = " ".join([run.rstrip(), *flags])
    nodes = "\n".join(address_of(i) for i in range(task["num_nodes"]))
    environment = ACTIVATED | {
        "SKYPILOT_NODE_IPS": nodes,
        "SKYPILOT_NODE_RANK": str(number),
        "BUCKET": "s3://bucket",
        "AWS_ENDPOINT_URL": s3,
        "AWS_ACCESS_KEY_ID": "us",
        "AWS_SECRET_ACCESS_KEY": "er",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    folder.mkdir(exist_ok=True)
    inside = ("ip", "netns", "exec", f"pl{os.getpid()}-{number}")
    command = ("bash", "-c", script)
    started = program(cwd=folder, environment=environment, inside=inside, command=command)
    return stack.enter_context(started)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")
@pytest.mark.long
def test_a_preempted_spot_machine_loses_nothing_and_new_machines_continue_from_the_bucket(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """A machine that is shut down sends a SIGTERM to every process on it."""
    boto3, own = pytest.importorskip("boto3"), write_own_code(tmp_path)
    names = [("node-0", "spot"), ("node-1", "spot")]
    with network(names), server(address_of(HERE)) as s3, ExitStack() as stack:
        keys = {"aws_access_key_id": "us", "aws_secret_access_key": "er"}
        client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="bucket")
        flags = ("--actions", f"{own}:wait_for_a_signal")
        old = [machine(stack, i, tmp_path / f"old-{i}", s3, *flags) for i in range(2)]
        wait_until((tmp_path / "reached").exists)
        reached = int((tmp_path / "reached").read_text())
        for pid in old[0].processes():
            os.kill(pid, signal.SIGTERM)
        ended = [each.wait() for each in old]
        assert [each.code for each in ended] == [143, 143], ended
        new = [machine(stack, i, tmp_path / f"new-{i}", s3) for i in range(2)]
        again = [each.wait() for each in new]
    assert [each.code for each in again] == [0, 0], again
    (resumed,) = re.findall(r"resuming at step (\d+)", again[0].out)
    assert int(resumed) >= reached
    digest = result_of(uninterrupted)["state_sha256"]
    assert again[0].last_line["state_sha256"] == digest
