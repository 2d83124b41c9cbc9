"""deploy/: the manifests are valid, and their pods train together.

No Kubernetes is needed: each pod is a network namespace with the host name and the variables that
Kubernetes and the operator would give it, and runs the command of its container.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.link import why_not

from helpers import Program, program, result_of, wait_until, write_own_code

DEPLOY = Path(__file__).parents[1] / "deploy"
MANIFESTS = sorted(DEPLOY.glob("*/*.yaml"))
SHARED = "/shared"


def read(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def objects(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a base by their kind, as its kustomization lists them."""
    kustomization = read(DEPLOY / name / "kustomization.yaml")[0]
    return {
        each["kind"]: each
        for file in kustomization["resources"]
        for each in read(DEPLOY / name / file)
    }


def pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """All pod templates in an object, wherever they are."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from pod_specs(each)
    if isinstance(value, list):
        for each in value:
            yield from pod_specs(each)


@pytest.mark.parametrize("name", ["indexed-job"])
def test_plain_objects_fit_the_schema_of_kubernetes(name: str) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    for each in objects(name).values():
        validate.validate(each, "1.31", strict=True)


def test_objects_of_the_trainer_fit_its_models() -> None:
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed"
    )
    found = objects("trainjob")
    runtime = models.TrainerV1alpha1TrainingRuntime.from_dict(found["TrainingRuntime"])
    job = models.TrainerV1alpha1TrainJob.from_dict(found["TrainJob"])
    assert job.spec.runtime_ref.name == runtime.metadata.name
    assert job.spec.trainer.num_nodes == 2


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_manifest_has_what_every_training_needs(path: Path) -> None:
    for each in read(path):
        if path.parent.name == "skypilot":
            assert {"resources", "num_nodes", "run"} <= set(each)
            continue
        assert {"apiVersion", "kind"} <= set(each)
        for spec in pod_specs(each):
            assert spec["terminationGracePeriodSeconds"] >= 60, "time to save"
            claims = [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]]
            assert claims == ["shared"]
            for container in spec["containers"]:
                assert container["volumeMounts"] == [{"name": "shared", "mountPath": SHARED}]


def test_every_kustomization_lists_the_files_of_its_folder() -> None:
    for path in DEPLOY.glob("*/kustomization.yaml"):
        listed = set(read(path)[0]["resources"])
        assert all((path.parent / each).exists() for each in listed), path
        own = {file.name for file in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert own <= listed, path


# ---- pods


def job_pods(job: dict[str, Any], stem: str, subdomain: str, env: dict[str, str]) -> list[Any]:
    """Host name, subdomain, variables and arguments of each pod of an Indexed Job."""
    assert job["completionMode"] == "Indexed"
    container = job["template"]["spec"]["containers"][0]
    given = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
    return [
        (
            f"{stem}-{index}",
            subdomain,
            given | env | {"JOB_COMPLETION_INDEX": str(index)},
            container.get("args"),
        )
        for index in range(job["completions"])
    ]


def pods_of(name: str) -> list[Any]:
    """The pods that Kubernetes, or the operator, would make of a base."""
    found = objects(name)
    if name == "indexed-job":
        spec = found["Job"]["spec"]
        assert spec["template"]["spec"]["subdomain"] == found["Service"]["metadata"]["name"]
        assert found["Service"]["spec"]["clusterIP"] == "None"
        return job_pods(spec, found["Job"]["metadata"]["name"], "paceline", {})
    if name == "jobset":
        own = found["JobSet"]
        (replicated,) = own["spec"]["replicatedJobs"]
        title = own["metadata"]["name"]
        stem = f"{title}-{replicated['name']}-0"
        return job_pods(replicated["template"]["spec"], stem, title, {})
    if name == "trainjob":  # the Trainer makes a JobSet of the runtime, with the job's name
        own, runtime = found["TrainJob"], found["TrainingRuntime"]
        (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        title, trainer = own["metadata"]["name"], own["spec"]["trainer"]
        spec = replicated["template"]["spec"] | {"completions": trainer["numNodes"]}
        env = {each["name"]: each["value"] for each in trainer["env"]} | {"PACELINE_SERVICE": title}
        pods = job_pods(spec, f"{title}-{replicated['name']}-0", title, env)
        return [(*pod[:3], trainer["args"]) for pod in pods]
    specs, title = found["TFJob"]["spec"]["tfReplicaSpecs"], found["TFJob"]["metadata"]["name"]
    hosts = {
        role.lower(): [f"{title}-{role.lower()}-{i}" for i in range(spec["replicas"])]
        for role, spec in specs.items()
    }
    cluster = {role: [f"{host}.{title}:2222" for host in names] for role, names in hosts.items()}
    return [
        (
            host,
            title,
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": i}})},
            specs[role.capitalize()]["template"]["spec"]["containers"][0]["args"],
        )
        for role, names in hosts.items()
        for i, host in enumerate(names)
    ]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def network(pods: list[Any]) -> Iterator[list[str]]:
    """A namespace for each pod on one bridge, in which the pods' names lead to their addresses."""
    bridge, spaces = f"pl{os.getpid() % 10_000}", [f"pl{os.getpid()}-{i}" for i in range(len(pods))]
    addresses = [f"10.77.{os.getpid() % 250}.{i + 2}" for i in range(len(pods))]
    names = "".join(
        f"{address} {pod[0]}.{pod[1]} {pod[0]}\n"
        for address, pod in zip(addresses, pods, strict=True)
    )
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for i, (space, address) in enumerate(zip(spaces, addresses, strict=True)):
            ip("netns", "add", space)
            inner, outer = f"{bridge}i{i}", f"{bridge}o{i}"
            ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
            ip("link", "set", outer, "master", bridge, "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", inner)
            ip("-n", space, "link", "set", inner, "up")
            ip("-n", space, "link", "set", "lo", "up")
            hosts = Path("/etc/netns", space, "hosts")  # `ip netns exec` shows it as /etc/hosts
            hosts.parent.mkdir(parents=True)
            hosts.write_text(f"127.0.0.1 localhost\n{names}")
        yield spaces
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
            subprocess.run(["rm", "-rf", f"/etc/netns/{space}"], check=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def start(stack: ExitStack, pod: Any, space: str, shared: Path, *more: str) -> Program:
    """Run the command of a pod's container, with a smaller training and its volume at `shared`."""
    hostname, _, environment, args = pod
    words = [word.replace(SHARED, str(shared)) for word in args]
    words[words.index("cifar10-fast")] = "smoke"
    at = words.index("--data.dir")
    del words[at : at + 2]
    own = f'hostname {hostname}; exec "$@"'
    inside = ("ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", own, "sh")
    words += ["--stall-timeout", "15"]
    running = program(*words, *more, cwd=shared, environment=environment, inside=inside)
    return stack.enter_context(running)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")
@pytest.mark.long
@pytest.mark.parametrize("base", ["indexed-job", "jobset", "trainjob", "tfjob"])
def test_the_pods_of_a_manifest_train_together_with_the_bits_of_one_process(
    base: str, uninterrupted: Path, tmp_path: Path
) -> None:
    """The first time, a pod is killed; then its platform restarts all of them."""
    pods, own = pods_of(base), write_own_code(tmp_path)
    with network(pods) as spaces, ExitStack() as stack:
        waiting = ("--actions", f"{own}:wait_for_a_signal")
        both = list(zip(pods, spaces, strict=True))
        running = [start(stack, pod, space, tmp_path, *waiting) for pod, space in both]
        wait_until((tmp_path / "reached").exists)
        os.kill(running[1].worker(), signal.SIGKILL)
        os.kill(running[1].pid, signal.SIGKILL)
        assert running[0].wait().code not in (0, 2), "its platform restarts it"
        running[1].wait()
        again = [start(stack, pod, space, tmp_path) for pod, space in both]
        ended = [each.wait() for each in again]
    assert [each.code for each in ended] == [0, 0], ended
    result = result_of(tmp_path / "runs" / "cifar10")
    assert result["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_the_entrypoint_of_the_rayjob_and_the_script_of_spark_are_commands_of_paceline() -> None:
    entrypoint = objects("rayjob")["RayJob"]["spec"]["entrypoint"]
    spark = objects("spark")["SparkApplication"]["spec"]
    for words in (shlex.split(entrypoint)[1:], spark["arguments"]):
        dry = subprocess.run(
            [sys.executable, "-m", "paceline", *words[:2], "--help"], capture_output=True, text=True
        )
        assert dry.returncode == 0
        for flag in (word for word in words if word.startswith("--")):
            assert flag in dry.stdout, flag
