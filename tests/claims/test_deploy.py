"""deploy/: the manifests are valid, and their pods train together.

No Kubernetes is needed: each pod is a network namespace with the host name and the variables that
Kubernetes and the operator would give it, and runs the command of its container.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from benchmarks.link import why_not
from kubeflow_trainer_api import models

from helpers import result_of, wait_until, write_own_code
from pods import DEPLOY, SHARED, network, objects, pods_of, read, start

MANIFESTS = sorted(DEPLOY.glob("*/*.yaml"))


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


def test_plain_objects_fit_the_schema_of_kubernetes() -> None:
    for each in objects("indexed-job").values():
        kubernetes_validate.validate(each, "1.31", strict=True)


def test_objects_of_the_trainer_fit_its_models() -> None:
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
