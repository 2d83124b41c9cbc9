"""The parameter-server engine: workers compute replicas, parameter servers store the state.

The chief coordinates them and computes nothing. This module opens the engine and checks that the
cluster can run it. Data come to the workers as TensorFlow ops: each worker reads files by itself,
and TensorFlow sends each worker once what the ops hold in memory.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from paceline.engines import devices
from paceline.engines.base import WantsStop
from paceline.engines.probe import wait_for
from paceline.engines_more.parameter_server.asynchronous import AsynchronousEngine
from paceline.engines_more.parameter_server.ps_base import ParameterServerEngine
from paceline.engines_more.parameter_server.synchronous import SynchronousEngine
from paceline.errors import UserError
from paceline.job import Job
from paceline.maths.replica import Core
from paceline.maths.update_more import has_muon


def connect(job: Job, wants_stop: WantsStop) -> Callable[[Core], ParameterServerEngine]:
    """Connect to workers and parameter servers."""
    devices.configure(job)
    wait_for(job.cluster.everyone[1:], job.place.start_timeout)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(job.cluster.tasks), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    # before anything else touches a device
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    gpus = gpus_of_workers(job)
    devices.gpus_elsewhere = len(gpus)

    def open_engine(core: Core) -> ParameterServerEngine:
        check_servers(core, len(job.cluster.ps))
        check_ops(core)
        side_by_side = len(gpus) or devices.own_share(job).side_by_side
        kind = AsynchronousEngine if core.experiment.sync.method == "async" else SynchronousEngine
        return kind(core, job.cluster, strategy, side_by_side, wants_stop, gpus)

    return open_engine


def gpus_of_workers(job: Job) -> list[str]:
    """Return the names of the GPUs that every worker has; raise UserError if only some have one."""
    found = [] if job.place.devices == "cpu" else tf.config.list_logical_devices("GPU")
    numbers = Counter(re.sub(r".*:", "", gpu.name) for gpu in found)
    common = [f"/gpu:{n}" for n in sorted(numbers) if numbers[n] == job.cluster.num_workers]
    if not common and (found or job.place.devices == "gpu"):
        raise UserError(
            f"{numbers['0']} of {job.cluster.num_workers} workers have a GPU; install the extra "
            "`gpu` on all, or pass --devices cpu"
        )
    return common


def check_servers(core: Core, servers: int) -> None:
    """Check that every parameter server gets a part of the parameters; with Muon, whole ones."""
    whole, params = has_muon(core.experiment.optimizer), core.layout.parts["params"]
    count = len(params) if whole else core.layout.sizes()["params"]
    if servers > count:
        raise UserError(
            f"there are {servers} parameter servers for {count} parameters; give {count} or fewer"
        )


def check_ops(core: Core) -> None:
    """Check that batches need no Python code: a worker gets the graph, not Python functions."""
    number = tf.TensorSpec([], tf.int64)
    batch: Any = core.phases[0].batch  # a tf.function
    graph = batch.get_concrete_function(number, number).graph.as_graph_def()
    functions = (node for function in graph.library.function for node in function.node_def)
    python = [node.op for node in [*graph.node, *functions] if "PyFunc" in node.op]
    if python:
        raise UserError(
            f"the data is read by Python code ({python[0]}), which cannot be sent to the workers "
            "of parameter servers; build the source of TensorFlow ops, or train without --ps"
        )
