"""TensorFlow's settings for a job, and the `tf.distribute` strategy in which its replicas meet.

The order in a process, because TensorFlow reads some settings when it is imported and others when
it first touches a device:

1. `import_tensorflow(job)`: before any module that imports TensorFlow;
2. `configure(job)`, or `build_strategy(job)`, which calls it: before any tensor is made.

A process that uses a trained model has its own order (`results.trained_model`).
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import NEIGHBORS

if TYPE_CHECKING:
    import tensorflow as tf


NOT_NEEDED = ("pandas", "IPython")
"""Packages that Keras imports if they are installed, and that a worker does not need."""


def import_tensorflow(job: Job, hide: Sequence[str] = NOT_NEEDED) -> None:
    """Set the environment variables that TensorFlow reads, and import it.

    An import makes objects and no garbage. Without garbage collection it takes a fifth less time,
    and later collections do not look at its objects. Packages in `hide` seem not to be installed.
    """
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # off on many CPUs, and two to three times faster
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    computes_nothing = job.cluster.ps and (job.cluster.is_chief or job.cluster.role == "ps")
    if job.place.devices == "cpu" or computes_nothing:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if "tensorflow" in sys.modules:
        return
    if hide:  # a worker, which traces functions for each shape on purpose
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    hidden = dict.fromkeys(name for name in hide if name not in sys.modules)
    sys.modules.update(hidden)  # type: ignore[arg-type]  # importing them fails
    gc.disable()
    try:
        with _without_chatter():
            import_module("keras")  # which imports TensorFlow
        gc.freeze()
    finally:
        gc.enable()
        for name in hidden:
            del sys.modules[name]


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Leave out what TensorFlow logs about oneDNN while it is loaded, whatever its log level is."""
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            log.seek(0)
            lines = [line for line in log if b"oneDNN" not in line and b"absl::" not in line]
            os.write(2, b"".join(lines))


def configure(job: Job, check_threads: bool = True) -> list[str]:
    """Set TensorFlow's threads and memory; return the names of the GPUs to use."""
    import_tensorflow(job)
    found = gpus(job)
    threads, replicas = job.experiment.threads_per_replica, job.experiment.replicas
    shares_threads = threads > 1 and replicas > job.cluster.num_workers and not found
    if check_threads and shares_threads and job.cluster.role == "worker":
        raise UserError(
            f"threads-per-replica is {threads}, but TensorFlow has one pool of threads per "
            f"process; give --workers {replicas} (one replica each) or --threads-per-replica 1"
        )
    # with parameter servers, the workers have the GPUs
    if job.place.devices == "gpu" and not found and not job.cluster.ps:
        raise UserError(
            "devices is gpu, but TensorFlow sees no GPU; install the extra `gpu`, "
            "or give --devices cpu"
        )
    _compute_in_long_turns()
    set_threads_and_memory(threads, side_by_side(job))
    return found


def _compute_in_long_turns() -> None:
    """Tell the system that this process computes (SCHED_BATCH), before TensorFlow starts threads.

    Then a worker that wakes up waits for its turn instead of interrupting another one, whose data
    is in the caches. Where workers share cores, that makes up to a tenth of the speed.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def set_threads_and_memory(threads: int, lanes: int) -> None:
    """Set what TensorFlow allows only before its first tensor."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, lanes))
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def build_strategy(job: Job) -> tf.distribute.Strategy:
    """Configure TensorFlow; return the strategy of the job's devices and workers.

    Workers on CPUs that share memory each have their own strategy.
    """
    found, workers = configure(job), job.cluster.num_workers
    import tensorflow as tf

    count = min(len(found), job.experiment.replicas // workers)
    if workers > 1 and (count or NEIGHBORS not in os.environ):
        from paceline.engines.network import build_multi_worker_strategy

        tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:count], "GPU")
        return build_multi_worker_strategy(job)
    if count > 1:
        return tf.distribute.MirroredStrategy(found[:count])
    return tf.distribute.OneDeviceStrategy("/gpu:0" if count else "/cpu:0")


def gpus(job: Job | None = None) -> list[str]:
    """Return the names of the GPUs that TensorFlow sees and the job, if there is one, may use."""
    import tensorflow as tf

    hidden = job and job.place.devices == "cpu"
    found = [] if hidden else tf.config.list_physical_devices("GPU")
    return [f"/gpu:{number}" for number in range(len(found))]


def uses_gpus(job: Job) -> bool:
    """Return whether replicas are computed on GPUs: of this process, or of a cluster's workers."""
    import tensorflow as tf

    remote = job.cluster.ps and job.place.devices != "cpu"
    return bool(gpus(job) or (remote and tf.config.list_logical_devices("GPU")))


def side_by_side(job: Job) -> int:
    """Return how many replicas run at a time on a device: one on a GPU, else by the cores.

    The workers of a place on one machine share its cores.
    """
    if gpus(job):
        return 1
    sharing = job.place.workers if job.place.kind.one_machine else 1
    cores = job.place.cores or len(os.sched_getaffinity(0)) // sharing
    largest_share = -(-job.experiment.replicas // job.place.workers)
    return max(1, min(cores // job.experiment.threads_per_replica, largest_share))
