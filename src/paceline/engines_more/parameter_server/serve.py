"""The TensorFlow server that a worker, or a parameter server, of such a cluster is.

It does what the chief sends it, and builds neither data nor model. It ends when the chief says so
(`ParameterServerEngine.close`) or is gone. The chief compares the facts that it publishes.
"""

import json
import os
import time

import tensorflow as tf

from paceline.engines.base import check_facts
from paceline.engines.devices import make_gpus_deterministic, own_share
from paceline.engines.probe import ask, wait_for
from paceline.experiment.fields import Json
from paceline.fingerprint import cpu_features
from paceline.job import Cluster, Job
from paceline.kernels import ops
from paceline.kernels.library import exact_name, why_unavailable
from paceline.versions import library_versions

ASK_EVERY_S = 1.0
GONE_AFTER = 5
"""Times that the chief did not answer."""
FACTS_HANDLE = 400
FACTS_FILE = f"/proc/self/fd/{FACTS_HANDLE}"


def serve(job: Job) -> None:
    """Serve until the process ends. Raises ConnectionError if the chief never came or is gone."""
    cluster, share = job.cluster, own_share(job)
    publish_facts()
    config = tf.compat.v1.ConfigProto(
        # as in every worker: it decides the order of sums
        intra_op_parallelism_threads=job.experiment.threads_per_replica,
        inter_op_parallelism_threads=share.threads,
    )
    config.gpu_options.visible_device_list = ",".join(map(str, share.gpus))
    config.gpu_options.allow_growth = True
    if share.gpus:
        make_gpus_deterministic()
    if not why_unavailable():  # the chief's graphs may have them
        ops.load()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster.tasks),
        job_name=cluster.role,
        task_index=cluster.index if cluster.role == "ps" else cluster.index - 1,
        protocol="grpc",
        config=config,
    )
    if job.place.kind.one_machine:
        server.join()  # the parent ends it
    chief, silences = cluster.addresses[0], 0
    wait_for([chief], job.place.start_timeout)
    while silences < GONE_AFTER:
        time.sleep(ASK_EVERY_S)
        silences = 0 if ask(chief) == "" else silences + 1
    raise ConnectionError(f"the chief at {chief} is gone")


def publish_facts() -> None:
    """Let the chief read what decides the bits of this process, as a file of /proc. The chief sends
    operations, and one of them reads files. Nothing is left behind."""
    facts = {"libraries": library_versions(), "cpu": cpu_features(), **_arithmetic()}
    handle = os.memfd_create("paceline-facts")
    os.write(handle, json.dumps(facts).encode())
    os.dup2(handle, FACTS_HANDLE, inheritable=False)
    os.close(handle)


def _arithmetic() -> dict[str, str]:
    """Return which of Paceline's kernels are here. The chief decides which ones it sends."""
    return {"kernels": exact_name("tensorflow" if why_unavailable() else "own")}


def check_tasks(cluster: Cluster, facts: Json) -> None:
    """Raise UserError if a task differs from the chief, whose `fingerprint` are the facts.
    Parameter servers only add and multiply: any CPU will do for them."""
    facts, everyone = facts | _arithmetic(), ["libraries", "kernels"]
    of_workers = everyone + ["bits", "cpu"] * (facts["cpu"] != "any")
    for role, names in (("worker", of_workers), ("ps", everyone)):
        for index, address in enumerate(cluster.tasks[role]):
            with tf.device(f"/job:{role}/task:{index}/cpu:0"):
                theirs = facts | json.loads(tf.io.read_file(FACTS_FILE).numpy())
            what = f"{role} {index} ({address}) differs from the chief"
            check_facts(what, *({name: each[name] for name in names} for each in (facts, theirs)))
