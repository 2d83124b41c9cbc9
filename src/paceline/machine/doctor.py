"""What is good, slow or broken on this machine. Each check is a function that gives findings; TensorFlow is looked at in processes of
its own, because its settings can be made only once in each."""

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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

SLOW_MB_PER_S = 30
LITTLE_MEMORY_GB, LITTLE_DISK_GB = 2.0, 1.0
TIMEOUT_S = 60


class Finding(NamedTuple):
    state: Literal["good", "slow", "broken", "absent"]
    what: str
    text: str


def examine_machine(
    run_dir: str, ray_address: str = "", spark_master: str = ""
) -> Iterator[Finding]:
    yield _python()
    yield from _tensorflow()
    yield _cores()
    yield _memory()
    yield _ports()
    yield from _ray(ray_address or os.environ.get("RAY_ADDRESS", ""))
    yield from _spark(spark_master)
    yield _run_folder(Path(run_dir))


def _python() -> Finding:
    names = ("paceline", "keras", "numpy")
    text = ", ".join(
        [f"Python {sys.version.split()[0]}", *(f"{name} {_version(name)}" for name in names)]
    )
    return Finding("good" if _version("keras") else "broken", "versions", text)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


# A forward and backward pass of a 3x3 convolution as in the first stage of a CIFAR ResNet, one thread, best of several.
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
    if isinstance(found, str):
        yield Finding(
            "broken",
            "TensorFlow",
            f"{found}; install it with pip install 'paceline[cpu]' or 'paceline[gpu]'",
        )
        return
    known = found["tensorflow"].startswith("2.21.")
    advice = (
        "" if known else "; Paceline is tested with 2.21: pip install 'tensorflow-cpu>=2.21,<2.22'"
    )
    yield Finding(
        "good" if known else "slow",
        "TensorFlow",
        f"{found['tensorflow']}, imported in {found['import_s']:.1f} s{advice}",
    )
    if found["backend"] != "tensorflow":
        yield Finding("broken", "Keras", f"its backend is {found['backend']}; unset KERAS_BACKEND")
    yield _devices(found["gpus"])
    yield _onednn(found["step_s"])


def _probe(onednn: str) -> dict[str, Any] | str:
    """What TensorFlow says and how fast it is, or why it says nothing."""
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": onednn, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {TIMEOUT_S} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def _devices(gpus: int) -> Finding:
    if gpus:
        return Finding(
            "good", "devices", f"{gpus} GPU{'s' * (gpus > 1)}; --devices cpu keeps off them"
        )
    if Path("/proc/driver/nvidia").exists():
        return Finding(
            "broken",
            "devices",
            "there is an NVIDIA driver, but TensorFlow sees no GPU: pip install 'paceline[gpu]'",
        )
    return Finding("good", "devices", "CPU only")


def _onednn(with_s: float) -> Finding:
    """Paceline's workers switch it on, whatever the environment says."""
    without = _probe("0")
    if isinstance(without, str):
        return Finding("broken", "oneDNN", without)
    ratio = without["step_s"] / with_s
    text = f"on in Paceline's workers; a convolution step takes {1000 * with_s:.0f} ms with it, {1000 * without['step_s']:.0f} without"
    if ratio < 0.9:
        return Finding(
            "slow",
            "oneDNN",
            f"{text}: this machine is faster without, which Paceline does not offer",
        )
    return Finding("good", "oneDNN", f"{text}, {ratio:.1f} times as long")


def _cores() -> Finding:
    cores, quota = len(os.sched_getaffinity(0)), _cpu_quota()
    text = f"{cores} for Paceline: as many --replicas are fastest, each on one thread"
    if quota and quota < cores:
        return Finding(
            "slow",
            "cores",
            f"{text}; but this container may use {quota:.1f} at a time: start it with taskset or a cpuset",
        )
    load = os.getloadavg()[0]
    if load > 0.5 * cores:
        return Finding(
            "slow",
            "cores",
            f"{text}; other programs keep {load:.1f} of them busy: wait, or stop them",
        )
    return Finding("good", "cores", text)


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
    if free < LITTLE_MEMORY_GB:
        return Finding(
            "slow",
            "memory",
            f"{free:.1f} GB free; a worker needs 1 to 2: free some, or use fewer --workers",
        )
    return Finding("good", "memory", f"{free:.1f} GB free; a worker needs 1 to 2")


def _ports() -> Finding:
    try:
        with socket.socket() as one, socket.socket() as two:
            for each in (one, two):
                each.bind(("127.0.0.1", 0))
            one.listen()
            socket.create_connection(one.getsockname(), timeout=2.0).close()
    except OSError as error:
        return Finding(
            "broken",
            "ports",
            f"workers of this machine cannot reach each other ({error}); --workers 1 works",
        )
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        text = f"the name of this machine, {socket.gethostname()}, has no address: several machines need one, in DNS or /etc/hosts"
        return Finding("slow", "ports", text)
    text = "free ones are found, and workers of this machine can reach each other"
    if address.startswith("127."):
        return Finding(
            "good",
            "ports",
            f"{text}; for several machines its name must not lead to {address}: see /etc/hosts",
        )
    return Finding("good", "ports", f"{text}; its name leads to {address}")


def _ray(address: str) -> Iterator[Finding]:
    if not (own := _version("ray")):
        yield Finding("absent", "Ray", "pip install 'paceline[ray]' for --on ray")
    elif not address or address in ("auto", "local"):
        yield Finding(
            "good",
            "Ray",
            f"{own}; a cluster is started here when it is needed, or give --ray.address",
        )
    else:
        yield _reach("Ray", own, re.sub(r"^ray://", "", address), "--ray.address and RAY_ADDRESS")


def _spark(master: str) -> Iterator[Finding]:
    if not (own := _version("pyspark")):
        yield Finding("absent", "Spark", "pip install 'paceline[spark]' for --on spark")
        return
    yield _java()
    if master.startswith("spark://"):
        yield _reach("Spark", own, master.removeprefix("spark://").split(",")[0], "--spark.master")
    else:
        yield Finding(
            "good", "Spark", f"{own}; give --spark-master spark://HOST:PORT to try a cluster"
        )


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        return Finding(
            "broken",
            "Java",
            f"not found{f' in JAVA_HOME {home}' * bool(home)}; Spark needs 17 or newer: install a JRE",
        )
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=10).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(
            "broken", "Java", f"{java} does not run ({error}); install a JRE of 17 or newer"
        )
    number = re.search(r'version "(\d+)', said)
    if not number or int(number[1]) < 17:
        return Finding(
            "broken", "Java", f"{said.splitlines()[0] if said else java}; Spark needs 17 or newer"
        )
    return Finding("good", "Java", f"{number[1]}, for Spark")


def _reach(what: str, own: str, address: str, flags: str) -> Finding:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3.0).close()
    except (OSError, ValueError) as error:
        return Finding(
            "broken",
            what,
            f"{own}; {address} does not answer ({error}): start it, or put {flags} right",
        )
    return Finding("good", what, f"{own}; {address} answers")


def _run_folder(folder: Path) -> Finding:
    """Write and sync 32 MB where runs go, or in the nearest folder that exists."""
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    free, file, size = (
        shutil.disk_usage(place).free / 1e9,
        place / f".paceline-doctor-{os.getpid()}",
        32,
    )
    began = time.perf_counter()
    try:
        with open(file, "wb") as handle:
            for _ in range(size):
                handle.write(os.urandom(1 << 20))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        return Finding(
            "broken",
            "run folder",
            f"cannot write to {place} ({error.strerror}); give another --run-dir",
        )
    finally:
        file.unlink(missing_ok=True)
    speed = size / (time.perf_counter() - began)
    text = f"{speed:,.0f} MB/s to {place}, {free:,.0f} GB free"
    if free < LITTLE_DISK_GB:
        return Finding(
            "slow",
            "run folder",
            f"{text}: too little for many checkpoints; make room, or use another --run-dir",
        )
    if speed < SLOW_MB_PER_S:
        return Finding(
            "slow",
            "run folder",
            f"{text}: checkpoints of large models will take long; use another --run-dir",
        )
    return Finding("good", "run folder", text)
