"""Checks of this machine: what is good, slow or broken, and what to do about it.

Each check returns or yields findings. TensorFlow is checked in processes of its own, because its
settings can be made only once in each process.
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
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from paceline.kernels.library import why_unavailable

SLOW_MB_PER_S = 30
LITTLE_MEMORY_GB = 2.0
LITTLE_DISK_GB = 1.0
TIMEOUT_S = 60
NO_ANSWER = f"no answer within {TIMEOUT_S} s: end programs that are busy, then try again"
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
    yield _python()
    yield from _tensorflow()
    yield _kernels()
    yield _cores()
    yield _memory()
    yield _ports()
    yield _ray(ray_address or os.environ.get("RAY_ADDRESS", ""))
    yield from _spark(spark_master)
    yield _run_folder(Path(run_dir))


def _python() -> Finding:
    packages = [f"{name} {_version(name)}" for name in ("paceline", "keras", "numpy")]
    text = ", ".join([f"Python {sys.version.split()[0]}", *packages])
    return (good if _version("keras") else broken)("versions", text)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


# A forward and backward pass of a 3x3 convolution, as in the first stage of a CIFAR ResNet, on one
# thread; the best of several.
_PROBE = """
import json, time
began = time.perf_counter()
import keras, tensorflow as tf
import_s = time.perf_counter() - began
tf.config.threading.set_intra_op_parallelism_threads(1)
x, w = tf.ones([64, 32, 32, 16]), tf.Variable(tf.ones([3, 3, 16, 16]))

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")))
    return tape.gradient(loss, w)

def timed():
    began = time.perf_counter()
    with tf.device("CPU:0"):
        step().numpy()
    return time.perf_counter() - began

timed()
print(json.dumps({
    "tensorflow": tf.__version__, "backend": keras.backend.backend(), "import_s": import_s,
    "step_s": min(timed() for _ in range(8)), "gpus": len(tf.config.list_physical_devices("GPU")),
}))
"""


def _tensorflow() -> Iterator[Finding]:
    found = _probe("1")
    if found is None:
        yield slow("TensorFlow", NO_ANSWER)
        return
    if isinstance(found, str):
        install = "pip install 'paceline[cpu]' or 'paceline[gpu]'"
        yield broken("TensorFlow", f"{found}; install it with {install}")
        return
    text = f"{found['tensorflow']}, imported in {found['import_s']:.1f} s"
    if found["tensorflow"].startswith("2.21."):
        yield good("TensorFlow", text)
    else:
        install = "pip install 'tensorflow-cpu>=2.21,<2.22'"
        yield slow("TensorFlow", f"{text}; Paceline is tested with 2.21: {install}")
    if found["backend"] != "tensorflow":
        yield broken("Keras", f"its backend is {found['backend']}; unset KERAS_BACKEND")
    yield _devices(found["gpus"])
    yield _onednn(found["step_s"])


def _probe(onednn: str) -> dict[str, Any] | str | None:
    """Return version and speed of TensorFlow, why it does not run, or None if it is too slow."""
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": onednn, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def _devices(gpus: int) -> Finding:
    if gpus:
        return good("devices", f"{gpus} GPU{'s' * (gpus > 1)}; --devices cpu trains without them")
    if Path("/proc/driver/nvidia").exists():
        return broken(
            "devices",
            "there is an NVIDIA driver, but TensorFlow finds no GPU: pip install 'paceline[gpu]'",
        )
    return good("devices", "CPU only")


def _onednn(with_s: float) -> Finding:
    """Compare the speed with and without oneDNN, which workers always switch on."""
    without = _probe("0")
    if without is None:
        return slow("oneDNN", NO_ANSWER)
    if isinstance(without, str):
        return broken("oneDNN", without)
    ratio = without["step_s"] / with_s
    times = f"{1000 * with_s:.0f} ms with it, {1000 * without['step_s']:.0f} without"
    text = f"on in Paceline's workers; a convolution step takes {times}"
    if ratio < 0.9:
        return slow("oneDNN", f"{text}: it slows down this machine, but cannot be switched off")
    return good("oneDNN", f"{text}, {ratio:.1f} times as long")


def _kernels() -> Finding:
    if reason := why_unavailable():
        return slow("kernels", f"TensorFlow's are used, at about half the speed: {reason}")
    return good("kernels", "own, for convolutions and BatchNorm on CPUs")


def _cores() -> Finding:
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


def _memory() -> Finding:
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


def _ports() -> Finding:
    try:
        with socket.socket() as one, socket.socket() as two:
            for each in (one, two):
                each.bind(("127.0.0.1", 0))
            one.listen()
            socket.create_connection(one.getsockname(), timeout=2.0).close()
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


def _ray(address: str) -> Finding:
    if not (own := _version("ray")):
        return absent("Ray", "pip install 'paceline[ray]' for --on ray")
    if not address or address in ("auto", "local"):
        text = "--on ray starts a cluster here, or uses the one of --ray.address"
        return good("Ray", f"{own}; {text}")
    return _reach("Ray", own, address.removeprefix("ray://"), "--ray.address and RAY_ADDRESS")


def _spark(master: str) -> Iterator[Finding]:
    if not (own := _version("pyspark")):
        yield absent("Spark", "pip install 'paceline[spark]' for --on spark")
        return
    yield _java()
    if master.startswith("spark://"):
        yield _reach("Spark", own, master.removeprefix("spark://").split(",")[0], "--spark.master")
    else:
        yield good("Spark", f"{own}; give --spark-master spark://HOST:PORT to check a cluster")


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    needed = "Spark needs Java 17 or newer: install a JRE"
    if not java or not os.path.exists(java):
        return broken("Java", f"not found{f' in JAVA_HOME {home}' * bool(home)}; {needed}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=10).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return broken("Java", f"{java} does not run ({error}); {needed}")
    number = re.search(r'version "(\d+)', said)
    if not number or int(number[1]) < 17:
        return broken("Java", f"{said.splitlines()[0] if said else java}; {needed}")
    return good("Java", f"{number[1]}, for Spark")


def _reach(what: str, own: str, address: str, flags: str) -> Finding:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3.0).close()
    except (OSError, ValueError) as error:
        text = f"{own}; {address} does not answer ({error})"
        return broken(what, f"{text}: start it, or correct {flags}")
    return good(what, f"{own}; {address} answers")


def _run_folder(folder: Path) -> Finding:
    """Write a file where runs are written, or in the nearest folder that exists, and time it."""
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(place).free / 1e9
    file = place / f".paceline-doctor-{os.getpid()}"
    began = time.perf_counter()
    try:
        with open(file, "wb") as handle:
            for _ in range(TEST_FILE_MB):
                handle.write(os.urandom(1 << 20))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        text = f"cannot write to {place} ({error.strerror})"
        return broken("run folder", f"{text}; give another --run-dir")
    finally:
        file.unlink(missing_ok=True)
    speed = TEST_FILE_MB / (time.perf_counter() - began)
    text = f"{speed:,.0f} MB/s to {place}, {free:,.0f} GB free"
    if free < LITTLE_DISK_GB:
        return slow("run folder", f"{text}: too little for many checkpoints; use another --run-dir")
    if speed < SLOW_MB_PER_S:
        return slow("run folder", f"{text}: large checkpoints take long; use another --run-dir")
    return good("run folder", text)
