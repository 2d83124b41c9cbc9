"""The parameter-server engine: workers compute replicas, parameter servers store the state.

The chief coordinates them and computes nothing. This module opens the engine and checks that the
cluster can run it. Data come to the workers as TensorFlow ops: each worker reads files by itself,
and TensorFlow sends each worker once what the ops hold in memory.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paceline.engines import devices
from paceline.engines.base import WantsStop
from paceline.engines.probe import answers
from paceline.engines_more.parameter_server.asynchronous import AsynchronousEngine
from paceline.engines_more.parameter_server.ps_base import ParameterServerEngine
from paceline.engines_more.parameter_server.serve import LIBRARIES_FILE
from paceline.engines_more.parameter_server.synchronous import SynchronousEngine
from paceline.errors import UserError
from paceline.experiment.fields import diff
from paceline.fingerprint import cpu_features
from paceline.job import Cluster, Job
from paceline.kernels import ops
from paceline.maths.grouped_update import has_muon
from paceline.maths.replica import Core
from paceline.versions import library_versions


def connect(job: Job, wants_stop: WantsStop) -> ServerConnection:
    """Connect to workers and parameter servers."""
    devices.configure(job)
    _wait_for_all(job)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(job.cluster.tasks), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    # before anything else touches a device
    return ServerConnection(job, wants_stop, tf.distribute.ParameterServerStrategy(resolver))


@dataclass(frozen=True)
class ServerConnection:
    """The chief's connection to workers and parameter servers."""

    job: Job
    wants_stop: WantsStop
    strategy: tf.distribute.ParameterServerStrategy

    def open(self, core: Core) -> ParameterServerEngine:
        job = self.job
        whole = has_muon(core.experiment.optimizer)
        params = core.layout.parts["params"]
        check_servers(len(job.cluster.ps), len(params) if whole else core.layout.sizes()["params"])
        check_ops(core)
        _check_workers(job.cluster)
        if core.template.kernels == "own":
            _check_kernels(job.cluster)
        side_by_side = 1 if _workers_have_gpus(job) else devices.side_by_side(job)
        asynchronous = core.experiment.sync.method == "async"
        kind = AsynchronousEngine if asynchronous else SynchronousEngine
        return kind(core, job.cluster, self.strategy, side_by_side, self.wants_stop)


def _wait_for_all(job: Job) -> None:
    deadline = time.monotonic() + job.place.start_timeout
    while missing := [address for address in job.cluster.everyone[1:] if not answers(address)]:
        if time.monotonic() > deadline:
            limit = f"{job.place.start_timeout:.0f} s"
            raise ConnectionError(f"no answer from {', '.join(missing)} within {limit}")
        time.sleep(0.1)


def check_servers(servers: int, params: int) -> None:
    """Check that every parameter server gets a part of the parameters; with Muon, whole ones."""
    if servers > params:
        raise UserError(
            f"there are {servers} parameter servers for {params} parameters; give {params} or fewer"
        )


def check_ops(core: Core) -> None:
    """Check that batches need no Python code: a worker gets the graph, not Python functions."""
    number = tf.TensorSpec([], tf.int64)
    batch: Any = core.batch  # a tf.function
    graph = batch.get_concrete_function(number, number).graph.as_graph_def()
    functions = (node for function in graph.library.function for node in function.node_def)
    python = [node.op for node in [*graph.node, *functions] if "PyFunc" in node.op]
    if python:
        raise UserError(
            f"the data are read by Python code ({python[0]}), which cannot be sent to the workers "
            "of parameter servers; build the source of TensorFlow ops, or train without --ps"
        )


def _check_workers(cluster: Cluster) -> None:
    """Check that all tasks have the chief's libraries, and workers its kind of CPU."""
    own = cpu_features()
    for index, address in enumerate(cluster.tasks["worker"]):
        theirs = cpu_features(_read_there("worker", index, "/proc/cpuinfo"))
        if theirs != own:
            raise UserError(
                f"worker {index} ({address}) has a different kind of CPU than the chief: "
                f"{theirs}, not {own}; use machines of the same kind"
            )
    for role in ("worker", "ps"):
        for index, address in enumerate(cluster.tasks[role]):
            check_libraries(f"{role} {index} ({address})", _read_there(role, index, LIBRARIES_FILE))


def _read_there(role: str, index: int, path: str) -> str:
    """Return a file of another task's machine; "" if there is none."""
    try:
        with tf.device(f"/job:{role}/task:{index}/cpu:0"):
            text: str = tf.io.read_file(path).numpy().decode()
        return text
    except tf.errors.NotFoundError:
        return ""


def check_libraries(task: str, text: str) -> None:
    """Check that a task has the chief's libraries; `text` is what it published."""
    if different := diff(library_versions(), json.loads(text or "{}")):
        raise UserError(
            f"{task} has different libraries than the chief: {', '.join(different[:4])}; "
            "install the same versions everywhere"
        )


def _check_kernels(cluster: Cluster) -> None:
    """Check that every worker has the chief's own kernels, by using one of them there."""
    for index, address in enumerate(cluster.tasks["worker"]):
        try:
            with tf.device(f"/job:worker/task:{index}/cpu:0"):
                ops.conv3x3(tf.zeros([1, 1, 1, 8]), tf.zeros([3, 3, 8, 8])).numpy()
        except tf.errors.OpError as error:
            raise UserError(
                f"worker {index} ({address}) lacks the chief's kernels; "
                "run python -m paceline.kernels there, or give --kernels tensorflow"
            ) from error


def _workers_have_gpus(job: Job) -> bool:
    gpus = [each for each in tf.config.list_logical_devices("GPU") if "/job:worker/" in each.name]
    if job.place.devices == "gpu" and not gpus:
        raise UserError(
            "devices is gpu, but no worker has one; install the extra `gpu` there, "
            "or give --devices cpu"
        )
    return bool(gpus)
