"""Pods of an Indexed Job: the cluster from their variables. No Kubernetes is needed."""

import pytest

from paceline.errors import UserError
from paceline.places import kubernetes


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
