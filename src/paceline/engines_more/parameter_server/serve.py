"""The TensorFlow server that a worker, or a parameter server, of such a cluster is.

It does what the chief sends it, and builds neither data nor model. It ends when the chief says so
(`ParameterServerEngine.close`) or is gone.
"""

from __future__ import annotations

import json
import os
import time

import tensorflow as tf

from paceline.engines.devices import side_by_side
from paceline.engines.probe import answers
from paceline.job import Job
from paceline.kernels import ops
from paceline.kernels.library import why_unavailable
from paceline.versions import library_versions

ASK_EVERY_S = 1.0
GONE_AFTER = 5
"""Times that the chief did not answer."""
LIBRARIES_HANDLE = 400
LIBRARIES_FILE = f"/proc/self/fd/{LIBRARIES_HANDLE}"


def serve(job: Job) -> None:
    """Serve until the process ends. Raises ConnectionError if the chief never came or is gone."""
    cluster = job.cluster
    _publish_libraries()
    config = tf.compat.v1.ConfigProto(
        # as in every worker: it decides the order of sums
        intra_op_parallelism_threads=job.experiment.threads_per_replica,
        inter_op_parallelism_threads=max(2, side_by_side(job)),
    )
    config.gpu_options.allow_growth = True
    index = cluster.index if cluster.role == "ps" else cluster.index - 1
    if not why_unavailable():  # the chief's graphs may have them
        ops.load()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster.tasks),
        job_name=cluster.role,
        task_index=index,
        protocol="grpc",
        config=config,
    )
    if job.place.kind.one_machine:
        server.join()  # the parent ends it
    _wait_for_chief(cluster.addresses[0], job.place.start_timeout)
    silences = 0
    while silences < GONE_AFTER:
        time.sleep(ASK_EVERY_S)
        silences = 0 if answers(cluster.addresses[0]) else silences + 1
    raise ConnectionError(f"the chief at {cluster.addresses[0]} is gone")


def _wait_for_chief(address: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not answers(address):
        if time.monotonic() > deadline:
            raise ConnectionError(f"no chief answered at {address} within {timeout_s:.0f} s")
        time.sleep(ASK_EVERY_S)


def _publish_libraries() -> None:
    """Let the chief of parameter servers read this process's libraries, as a file of /proc.

    The chief sends operations, and one of them reads files. Nothing is left behind.
    """
    handle = os.memfd_create("paceline-libraries")
    os.write(handle, json.dumps(library_versions()).encode())
    os.dup2(handle, LIBRARIES_HANDLE, inheritable=False)
    os.close(handle)
