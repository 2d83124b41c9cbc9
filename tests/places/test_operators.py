"""deploy/ where something else than Kubernetes starts the workers: KubeRay, the Spark operator and
SkyPilot. What SkyPilot would start runs here: machines with a bucket."""

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks.link import why_not

import paceline
from helpers import Program, program, result_of, wait_until, write_own_code
from pods import DEPLOY, HERE, address_of, network, objects, read
from s3_server import server

PACKAGE = "local:///opt/paceline/lib/python3.11/site-packages/paceline/"
ACTIVATED = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_the_entrypoint_of_the_rayjob_and_the_script_of_spark_are_commands_of_paceline() -> None:
    ray = objects("rayjob")["RayJob"]["spec"]
    entrypoint, cluster = shlex.split(ray["entrypoint"])[1:], ray["rayClusterSpec"]
    groups = [cluster["headGroupSpec"] | {"replicas": 1}, *cluster["workerGroupSpecs"]]
    cpus = sum(each["replicas"] * int(each["rayStartParams"]["num-cpus"]) for each in groups)
    assert cpus >= int(entrypoint[entrypoint.index("--workers") + 1])
    spark = objects("spark")["SparkApplication"]["spec"]
    assert spark["mainApplicationFile"].startswith(PACKAGE)
    script = spark["mainApplicationFile"].removeprefix(PACKAGE)
    assert Path(paceline.__file__).parent.joinpath(script).exists()
    for words in (entrypoint, spark["arguments"]):
        command = [sys.executable, "-m", "paceline", *words[:2], "--help", "all"]
        dry = subprocess.run(command, capture_output=True, text=True)
        assert dry.returncode == 0
        for flag in (word for word in words if word.startswith("--")):
            assert flag in dry.stdout, flag


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
