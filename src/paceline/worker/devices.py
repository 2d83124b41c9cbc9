"""A job's devices: TensorFlow's settings, and the `tf.distribute` strategy in which replicas meet."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING

from paceline.config.experiment import Experiment
from paceline.config.job import Job
from paceline.errors import AddressTaken, UserError

if TYPE_CHECKING:
    import tensorflow as tf


def set_environment(job: Job) -> None:
    """What TensorFlow reads when it is imported, and so comes before."""
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = (
        "1"  # off by default on many CPUs, and two to three times faster
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    adds_only = job.cluster.ps and (job.cluster.is_chief or job.cluster.role == "ps")
    if job.place.devices == "cpu" or adds_only:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def import_tensorflow(job: Job) -> None:
    """With its environment. An import makes objects and no garbage; looking for it takes a fifth of the time, and would again at
    each later collection."""
    set_environment(job)
    if "tensorflow" in sys.modules:
        return
    collecting = gc.isenabled()
    gc.disable()
    try:
        import_module("keras")  # which brings TensorFlow
        gc.freeze()
    finally:
        if collecting:
            gc.enable()


def build_strategy(job: Job) -> tf.distribute.Strategy:
    """TensorFlow's settings, made before it touches a device, and the `tf.distribute` strategy of the job's devices and workers."""
    found = configure(job)
    import tensorflow as tf

    workers = job.cluster.num_workers
    count = max(
        (
            n
            for n in (1, 2, 4, 8, 16, 32, 64)
            if n <= min(len(found), job.experiment.replicas // workers)
        ),
        default=0,
    )
    if workers > 1:
        tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:count], "GPU")
        return _several_workers(job)
    if count > 1:
        return tf.distribute.MirroredStrategy(found[:count])
    return tf.distribute.OneDeviceStrategy("/gpu:0" if count else "/cpu:0")


def configure(job: Job) -> list[str]:
    """Make TensorFlow's settings, before it touches a device; the names of the GPUs to use."""
    set_environment(job)
    found = gpus(job)
    threads, workers = job.experiment.threads_per_replica, job.cluster.num_workers
    if (
        threads > 1
        and job.experiment.replicas > workers
        and not found
        and job.cluster.role == "worker"
    ):
        raise UserError(
            f"threads-per-replica is {threads}, but TensorFlow has one pool of threads per process; "
            f"give --workers {job.experiment.replicas} (one replica each) or --threads-per-replica 1"
        )
    set_up(job)
    return found


def set_up(job: Job) -> None:
    """TensorFlow's pools of threads, and memory of GPUs as it is needed; before it touches a device."""
    import tensorflow as tf

    if (
        job.place.devices == "gpu" and not gpus(job) and not job.cluster.ps
    ):  # there, the workers have them
        raise UserError(
            "devices is gpu, but TensorFlow sees no GPU; install the extra `gpu`, or give --devices cpu"
        )
    tf.config.threading.set_intra_op_parallelism_threads(job.experiment.threads_per_replica)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, side_by_side(job)))
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def _several_workers(job: Job) -> tf.distribute.Strategy:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(job.cluster.addresses)}),
        task_type="worker",
        task_id=job.cluster.index,
        rpc_layer="grpc",
    )
    on_sigterm = signal.getsignal(signal.SIGTERM)
    _be_patient(job)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in str(error):
            raise
        own = job.cluster.addresses[job.cluster.index]
        raise AddressTaken(
            f"cannot listen at {own}: another program has its port; end that, or give another"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(
            signal.SIGTERM, on_sigterm
        )  # which TensorFlow's coordination service has taken for itself
    return strategy


def _be_patient(job: Job) -> None:
    """TensorFlow's coordination service gives a worker up after 10 s without a heartbeat, which a slow link full of vectors can delay
    for longer. Who counts as lost is the supervisor's to say, and it names who; the service only comes after it."""
    from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=int(2000 * job.place.stall_timeout),
        coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=job.cluster.num_workers)],
    )


def gpus(job: Job) -> list[str]:
    import tensorflow as tf

    return (
        []
        if job.place.devices == "cpu"
        else [f"/gpu:{i}" for i, _ in enumerate(tf.config.list_physical_devices("GPU"))]
    )


def side_by_side(job: Job) -> int:
    """How many replicas run at a time on a device: one on a GPU, else as many as this worker has cores for. The workers of one
    command share the cores of their machine; Ray reserves some for each."""
    if gpus(job):
        return 1
    share = int(job.place.ray.cpus_per_worker) if job.place.on == "ray" else 0
    neighbours = job.place.workers if job.place.on == "local" else 1
    cores = job.place.cores or share or len(os.sched_getaffinity(0)) // neighbours
    return max(
        1,
        min(
            cores // job.experiment.threads_per_replica,
            job.experiment.replicas // job.place.workers,
        ),
    )


def prepare(experiment: Experiment) -> int:
    """TensorFlow's settings for using a trained model in this process, as its training had them; where TensorFlow was used here
    before, they stay as they are. Answers how many batches to compute side by side."""
    if "tensorflow" not in sys.modules:
        import_tensorflow(Job(experiment))
    import tensorflow as tf

    lanes = max(1, len(os.sched_getaffinity(0)) // experiment.threads_per_replica)
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(experiment.threads_per_replica)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, lanes))
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    return 1 if tf.config.list_physical_devices("GPU") else lanes
