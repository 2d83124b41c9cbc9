"""The connection to a Ray cluster, and the resources that a worker needs there."""

from __future__ import annotations

import math
import os
import signal
import socket

import ray

from paceline.errors import UserError, first_line
from paceline.experiment.fields import Json
from paceline.job import Job

CONNECT_S = 8.0
PLACED_S = 10.0
"""How long the others wait for an actor that Ray has not placed. It may join later."""


def connect_to_ray(job: Job) -> None:
    """Connect to the cluster of --ray.address or RAY_ADDRESS.

    If neither is given, start a cluster here that ends with this process.
    """
    address = job.place.ray.address or os.environ.get("RAY_ADDRESS", "")
    check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: Json = {"address": address}
    if not address or address == "local":
        needed = math.ceil(job.place.workers * job.place.ray.cpus_per_worker)
        cores = max(len(os.sched_getaffinity(0)), needed)
        options = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)  # ray.init replaces it
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR", namespace="paceline")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"cannot use the Ray cluster at {address or 'this machine'}: {first_line(error)}; "
            "check that its head is there and accepts this token (RAY_AUTH_MODE, RAY_AUTH_TOKEN)"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)


def check_address(address: str) -> None:
    """Fail at once if nothing listens at the address; Ray itself would wait for minutes."""
    if "://" in address:
        raise UserError(
            f"ray.address is {address!r}; "
            "give host:port of the cluster's head (usually port 6379), or auto"
        )
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise UserError(
            f"there is no Ray cluster at {address} ({error}); start one there with `ray start "
            "--head`, or leave out --ray.address and RAY_ADDRESS to have one started here"
        ) from error


def resources_of(job: Job, who: str = "a worker") -> dict[str, float]:
    """Return what Ray reserves for a worker, after checking that some node has it.

    Workers beyond what is free wait for further nodes.
    """
    cpus, gpus = job.place.ray.cpus_per_worker, job.place.ray.gpus_per_worker
    if gpus < 0:
        gpus = float(bool(ray.cluster_resources().get("GPU")) and job.place.devices != "cpu")
    wanted = {"num_cpus": cpus, "num_gpus": gpus}
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [{"num_cpus": node.get("CPU", 0), "num_gpus": node.get("GPU", 0)} for node in alive]
    if not any(all(node[name] >= wanted[name] for name in wanted) for node in nodes):
        raise UserError(
            f"{who} needs {needs(wanted)}, but no node of the Ray cluster has them "
            f"(the nodes have: {'; '.join(needs(node) for node in nodes[:8])}); "
            "give a smaller --ray.cpus-per-worker or --ray.gpus-per-worker"
        )
    return wanted


def needs(resources: dict[str, float]) -> str:
    """Describe resources in a message."""
    return f"{resources['num_cpus']:g} CPUs and {resources['num_gpus']:g} GPUs"
