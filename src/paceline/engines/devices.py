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
from importlib.util import find_spec
from typing import TYPE_CHECKING

from paceline.engines import placement
from paceline.engines.placement import Share
from paceline.errors import UserError
from paceline.job import Job

if TYPE_CHECKING:
    import tensorflow as tf


NOT_NEEDED = ("pandas", "IPython")
"""Packages that Keras imports if they are installed, and that a worker does not need."""

gpus_elsewhere = 0
"""GPUs of each worker, in a process that leaves the computing to them: its engine sets it."""


def import_tensorflow(job: Job, hide: Sequence[str] = NOT_NEEDED) -> None:
    """Set the environment variables that TensorFlow reads, and import it.

    An import makes objects and no garbage. Without garbage collection it takes a fifth less time,
    and later collections do not look at its objects. Packages in `hide` seem not to be installed.
    """
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # off on many CPUs, and two to three times faster
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    leads = job.cluster.is_chief and not job.cluster.chief_trains
    computes_nothing = job.cluster.ps and (leads or job.cluster.role == "ps")
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


def configure(job: Job, check_threads: bool = True) -> Share:
    """Set TensorFlow's threads, memory and devices; return what this worker uses."""
    import_tensorflow(job)
    share = own_share(job)
    threads, replicas = job.experiment.threads_per_replica, job.experiment.replicas
    shares_threads = threads > 1 and replicas > job.cluster.num_workers and not share.gpus
    if check_threads and shares_threads and job.cluster.role == "worker":
        raise UserError(
            f"threads-per-replica is {threads}, but TensorFlow has one pool of threads per "
            f"process; pass --workers {replicas} (one replica each) or --threads-per-replica 1"
        )
    # with parameter servers, the workers have the GPUs
    if job.place.devices == "gpu" and not share.gpus and not job.cluster.ps:
        raise UserError(
            "devices is gpu, but TensorFlow sees no GPU; install the extra `gpu`, "
            "or pass --devices cpu"
        )
    _compute_in_long_turns()
    set_threads_and_memory(threads, share.threads, share.gpus)
    return share


def _compute_in_long_turns() -> None:
    """Tell the system that this process computes (SCHED_BATCH), before TensorFlow starts threads.

    Then a worker that wakes up waits for its turn instead of interrupting another one, whose data
    is in the caches. Where workers share cores, that makes up to a tenth of the speed.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def set_threads_and_memory(threads: int, lanes: int, gpus: Sequence[int] | None = None) -> None:
    """Set what TensorFlow allows only before its first tensor. Without `gpus`, use all of them."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, lanes))
    found = tf.config.list_physical_devices("GPU")
    used = found if gpus is None else [found[number] for number in gpus]
    if found:
        tf.config.set_visible_devices(used, "GPU")
    for gpu in used:
        tf.config.experimental.set_memory_growth(gpu, True)
    if used:
        make_gpus_deterministic()


def make_gpus_deterministic() -> None:
    """Let operations on GPUs give the same bits each time, in full float32."""
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(False)


def build_strategy(job: Job) -> tf.distribute.Strategy:
    """Configure TensorFlow; return the strategy of the job's GPUs, or of this worker's CPU."""
    count, workers = len(configure(job).gpus), job.cluster.num_workers
    import tensorflow as tf

    if workers > 1 and count:
        from paceline.engines.network import build_multi_worker_strategy

        return build_multi_worker_strategy(job)
    if count > 1:
        return tf.distribute.MirroredStrategy([f"/gpu:{number}" for number in range(count)])
    return tf.distribute.OneDeviceStrategy("/gpu:0" if count else "/cpu:0")


def own_share(job: Job) -> Share:
    """Return what this worker uses of its host, or the first worker, if only workers compute."""
    gpus = gpus_elsewhere or (0 if job.place.devices == "cpu" else num_gpus())
    cores = len(os.sched_getaffinity(0))
    return placement.own_share(job, gpus, cores, os.environ, gpus_elsewhere > 0)


def num_gpus() -> int:
    """Return the number of GPUs that TensorFlow sees."""
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


def warnings(job: Job) -> Iterator[str]:
    """Yield what a person should know about the devices of a run."""
    share = own_share(job)
    if share.unused:
        total = share.unused + len(share.gpus) * job.place.workers
        yield (
            f"{job.experiment.replicas} replicas use {total - share.unused} of {total} GPUs; "
            f"--gpus {total} uses all of them (a different experiment)"
        )
    if job.place.devices == "auto" and not share.gpus and find_spec("nvidia"):
        yield (
            "the extra `gpu` is installed, but TensorFlow sees no GPU, so this trains on the CPU; "
            "start a container with --gpus all, or pass --devices cpu if this is meant"
        )
