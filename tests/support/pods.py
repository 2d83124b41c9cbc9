"""deploy/ without Kubernetes: each pod is a network namespace with the host name and the variables
that Kubernetes and the operator would give it, and runs the command of its container."""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from helpers import Program, program

DEPLOY = Path(__file__).parents[2] / "deploy"
SHARED = "/shared"
HERE = -1


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


def address_of(pod: int) -> str:
    """The address of a pod, or of this process (HERE), in the network of this process."""
    return f"10.77.{os.getpid() % 250}.{pod + 2}"


@contextmanager
def network(pods: list[Any]) -> Iterator[list[str]]:
    """A namespace for each pod on one bridge, in which the pods' names lead to their addresses."""
    bridge, spaces = f"pl{os.getpid() % 10_000}", [f"pl{os.getpid()}-{i}" for i in range(len(pods))]
    addresses = [address_of(i) for i in range(len(pods))]
    names = "".join(
        f"{address} {pod[0]}.{pod[1]} {pod[0]}\n"
        for address, pod in zip(addresses, pods, strict=True)
    )
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        ip("addr", "add", f"{address_of(HERE)}/24", "dev", bridge)
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
        for i, space in enumerate(spaces):
            # the system ends the links of a namespace some time after it, and the next test has
            # links of the same names
            subprocess.run(["ip", "link", "del", f"{bridge}o{i}"], capture_output=True)
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
            subprocess.run(["rm", "-rf", f"/etc/netns/{space}"], check=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def smaller(args: Sequence[str], shared: Path) -> list[str]:
    """A container's command with a smaller training, and its volume at `shared`."""
    words = [word.replace(SHARED, str(shared)) for word in args]
    words[words.index("cifar10-fast")] = "smoke"
    at = words.index("--data.dir")
    del words[at : at + 2]
    return words


def start(stack: ExitStack, pod: Any, space: str, shared: Path, *more: str) -> Program:
    """Run the command of a pod's container."""
    hostname, _, environment, args = pod
    own = f'hostname {hostname}; exec "$@"'
    inside = ("ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", own, "sh")
    words = [*smaller(args, shared), "--stall-timeout", "15", *more]
    running = program(*words, cwd=shared, environment=environment, inside=inside)
    return stack.enter_context(running)
