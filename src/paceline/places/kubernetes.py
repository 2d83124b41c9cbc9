"""One pod of an Indexed Job on Kubernetes, with a headless service and no operator.

Kubernetes gives a pod its number (JOB_COMPLETION_INDEX) and the host name <something>-<number>. The
manifest adds the name of the headless service and the number of pods (deploy/indexed-job). A JobSet
and a TrainJob of the Kubeflow Trainer name their pods in the same way.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from paceline.errors import UserError
from paceline.job import Cluster, Job
from paceline.messages import Send
from paceline.places.platform_task import build_cluster, number, open_task
from paceline.supervise.interface import OpenPlace

INDEX = "JOB_COMPLETION_INDEX"
SERVICE = "PACELINE_SERVICE"
"""Name of the headless service: pods reach each other at <host name>.<service>."""
COUNT = "PACELINE_PODS"


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """Find this pod's task in the environment variables of the manifest."""
    for name in (INDEX, SERVICE, COUNT):
        if name not in os.environ:
            raise UserError(
                f"--on kubernetes needs the environment variable {name}, which is not set; "
                "deploy/indexed-job has a manifest that sets it"
            )
    cluster = find_cluster(os.environ, socket.gethostname(), job.place.ps)
    yield open_task(job, cluster, COUNT, listen)


def find_cluster(environment: Mapping[str, str], hostname: str, num_servers: int) -> Cluster:
    """Return the cluster of the pods, and which of its processes this one is."""
    index, count = number(environment, INDEX), number(environment, COUNT)
    port = number({"PACELINE_PORT": environment.get("PACELINE_PORT") or "2222"}, "PACELINE_PORT")
    stem, _, suffix = hostname.split(".")[0].rpartition("-")
    if not stem or suffix != str(index):
        raise UserError(
            f"the host name of this pod is {hostname!r}; it must end with its number, -{index}: "
            "the job needs completionMode Indexed, and its pods the service as subdomain"
        )
    if index >= count:
        raise UserError(
            f"{INDEX} is {index}, but {COUNT} is {count}; both the job's completions and {COUNT} "
            "must be the number of pods"
        )
    hosts = [f"{stem}-{i}.{environment[SERVICE]}:{port}" for i in range(count)]
    return build_cluster(hosts, index, num_servers)
