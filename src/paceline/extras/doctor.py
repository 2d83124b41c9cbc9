"""Checks of this machine: each finding is good, slow, broken or absent, and says what to do.

TensorFlow is checked in a separate process, because its settings can be made only once in each
process. What a place checks before it starts (Java, addresses of clusters) is called there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from paceline.errors import UserError
from paceline.kernels.library import why_unavailable

SLOW_MB_PER_S = 30
LITTLE_MEMORY_GB = 2.0
LITTLE_DISK_GB = 1.0
TIMEOUT_S = 60
TEST_FILE_MB = 32


class Finding(NamedTuple):
    state: Literal["good", "slow", "broken", "absent"]
    what: str
    text: str


good = partial(Finding, "good")
slow = partial(Finding, "slow")
broken = partial(Finding, "broken")
absent = partial(Finding, "absent")


def examine_machine(
    run_dir: str, ray_address: str = "", spark_master: str = ""
) -> Iterator[Finding]:
    """Yield the findings of all checks, each as soon as it is known."""
    yield check_versions()
    yield from check_tensorflow()
    yield check_kernels()
    yield check_cores()
    yield check_memory()
    yield check_ports()
    yield check_ray(ray_address or os.environ.get("RAY_ADDRESS", ""))
    yield from check_spark(spark_master)
    yield check_run_folder(Path(run_dir))


def check_versions() -> Finding:
    packages = [f"{name} {_version(name)}" for name in ("paceline", "keras", "numpy")]
    text = ", ".join([f"Python {sys.version.split()[0]}", *packages])
    return (good if _version("keras") else broken)("versions", text)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


PROBE = """
import json, time
began = time.perf_counter()
import keras, tensorflow as tf
print(json.dumps({
    "tensorflow": tf.__version__, "import_s": time.perf_counter() - began,
    "backend": keras.backend.backend(), "gpus": len(tf.config.list_physical_devices("GPU")),
}))
"""


def check_tensorflow() -> Iterator[Finding]:
    """Import TensorFlow in a separate process; check its version, Keras and the devices."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        advice = "end programs that are busy, then try again"
        yield slow("TensorFlow", f"no answer within {TIMEOUT_S} s: {advice}")
        return
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        install = "pip install 'paceline[cpu]' or 'paceline[gpu]'"
        yield broken("TensorFlow", f"{reason}; install it with {install}")
        return
    found = json.loads(done.stdout.splitlines()[-1])
    text = f"{found['tensorflow']}, imported in {found['import_s']:.1f} s"
    if found["tensorflow"].startswith("2.21."):
        yield good("TensorFlow", text)
    else:
        install = "pip install 'tensorflow-cpu>=2.21,<2.22'"
        yield slow("TensorFlow", f"{text}; Paceline is tested with 2.21: {install}")
    if found["backend"] != "tensorflow":
        yield broken("Keras", f"its backend is {found['backend']}; unset KERAS_BACKEND")
    yield _devices(found["gpus"])


def _devices(gpus: int) -> Finding:
    if gpus:
        return good("devices", f"{gpus} GPU{'s' * (gpus > 1)}; --devices cpu trains without them")
    if Path("/proc/driver/nvidia").exists():
        return broken(
            "devices",
            "there is an NVIDIA driver, but TensorFlow finds no GPU: pip install 'paceline[gpu]'",
        )
    return good("devices", "CPU only")


def check_kernels() -> Finding:
    if reason := why_unavailable():
        return slow("kernels", f"TensorFlow's are used, at about half the speed: {reason}")
    return good("kernels", "Paceline's, for convolutions and BatchNorm on CPUs")


def check_cores() -> Finding:
    cores, quota, load = len(os.sched_getaffinity(0)), _cpu_quota(), os.getloadavg()[0]
    text = f"{cores} for Paceline; training is fastest with as many --replicas"
    if quota and quota < cores:
        limit = f"this container may use only {quota:.1f} at a time"
        return slow("cores", f"{text}. But {limit}: start it with taskset or a cpuset")
    if load > 0.5 * cores:
        return slow(
            "cores", f"{text}. But other programs use {load:.1f} of them: wait, or end them"
        )
    return good("cores", text)


def _cpu_quota() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def check_memory() -> Finding:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    free = int(found[1]) / 1e6 if found else 0.0
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, (limit - int(Path("/sys/fs/cgroup/memory.current").read_text())) / 1e9)
    except (OSError, ValueError):  # no limit
        pass
    text = f"{free:.1f} GB free; a worker needs 1 to 2 GB"
    if free < LITTLE_MEMORY_GB:
        return slow("memory", f"{text}: free some, or use fewer --workers")
    return good("memory", text)


def check_ports() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2.0).close()
    except OSError as error:
        text = f"processes on this machine cannot connect to each other ({error})"
        return broken("ports", f"{text}; only --workers 1 works")
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        text = f"the host name of this machine, {name}, does not resolve"
        return slow("ports", f"{text}: training on several machines needs it in DNS or /etc/hosts")
    text = "processes on this machine can connect to each other"
    resolves = f"the host name {name} resolves to {address}"
    if address.startswith("127."):
        other = "other machines cannot connect to that; to train on several machines"
        return good("ports", f"{text}; {resolves}, and {other}, change /etc/hosts")
    return good("ports", f"{text}; {resolves}")


def check_ray(address: str) -> Finding:
    if not (own := _version("ray")):
        return absent("Ray", "pip install 'paceline[ray]' for --on ray")
    if not address or address in ("auto", "local"):
        text = "--on ray starts a cluster here, or uses the one of --ray.address"
        return good("Ray", f"{own}; {text}")
    from paceline.engines_more.object_store.ray_cluster import check_address

    return _tried("Ray", partial(check_address, address), f"{own}; {address} answers")


def check_spark(master: str) -> Iterator[Finding]:
    if not (own := _version("pyspark")):
        yield absent("Spark", "pip install 'paceline[spark]' for --on spark")
        return
    from paceline.places.spark.session import OLDEST_JAVA, check_java, check_master

    yield _tried("Java", check_java, f"{OLDEST_JAVA} or newer, for Spark")
    if master.startswith("spark://"):
        yield _tried("Spark", partial(check_master, master), f"{own}; {master} answers")
    else:
        yield good("Spark", f"{own}; give --spark-master spark://HOST:PORT to check a cluster")


def _tried(what: str, check: Callable[[], None], text: str) -> Finding:
    """Run what a place checks before it starts."""
    try:
        check()
    except (UserError, OSError) as error:
        return broken(what, str(error))
    return good(what, text)


def check_run_folder(folder: Path) -> Finding:
    """Write a file where runs are written, or in the nearest folder that exists, and time it."""
    parents = (folder.absolute(), *folder.absolute().parents)
    existing = next(each for each in parents if each.is_dir())
    free = shutil.disk_usage(existing).free / 1e9
    file = existing / f".paceline-doctor-{os.getpid()}"
    began = time.perf_counter()
    try:
        with open(file, "wb") as handle:
            for _ in range(TEST_FILE_MB):
                handle.write(os.urandom(1 << 20))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        text = f"cannot write to {existing} ({error.strerror})"
        return broken("run folder", f"{text}; give another --run-dir")
    finally:
        file.unlink(missing_ok=True)
    speed = TEST_FILE_MB / (time.perf_counter() - began)
    text = f"{speed:,.0f} MB/s to {existing}, {free:,.0f} GB free"
    if free < LITTLE_DISK_GB:
        return slow("run folder", f"{text}: too little for many checkpoints; use another --run-dir")
    if speed < SLOW_MB_PER_S:
        return slow("run folder", f"{text}: large checkpoints take long; use another --run-dir")
    return good("run folder", text)
