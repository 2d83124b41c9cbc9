"""The scene of a round of `make chaos`: what is trained, where, and what faults can touch.

A `Plan` follows from the seed alone. A `Scene` is what was built for it: folders, storage, hosts,
and the commands of an attempt.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.link import many_hosts, run, switch_name, why_not
from benchmarks.slurm_cluster import WHY_NOT as NO_SLURM

from chaos_clock import CLOCK
from chaos_proxy import Proxy
from helpers import MARK, Program, free_addresses, tf_config

DISK_MB = 24
UPLINK = "10.213.78.254"
"""The address of this process for hosts in namespaces."""
QUICK = ("--stall-timeout", "20", "--start-timeout", "120")
LIMITS = {"PACELINE_LOCK_TIMEOUT_S": "20", "PACELINE_STORAGE_PATIENCE_S": "15"}
"""Shorter than usual, so that faults that last happen too."""
LOCAL_PLACES = ("one process", "local", "ps", "tf_config")
PLACES = (
    *("one process", "local", "local", "ps", "ps", "tf_config", "tf_config"),
    *("hosts", "hosts", "ray", "spark", "spark", "slurm"),
)
ACTION = """
import time

def slowly(step, metrics):
    time.sleep(0.7)
"""


@dataclass(frozen=True)
class Plan:
    """What is trained where in a round; it follows from the seed alone."""

    place: str
    workers: int
    servers: int
    method: str
    storage: str
    """disk, small disk (it can be full) or s3."""
    records: bool
    """Whether the training reads TFRecords."""

    def __str__(self) -> str:
        data = "TFRecords" if self.records else "built-in data"
        servers = f" + {self.servers} servers" if self.servers else ""
        return f"{self.place} x {self.workers}{servers}, {self.method}, {self.storage}, {data}"


def plan_of(chance: random.Random, places: tuple[str, ...] = PLACES) -> Plan:
    place = chance.choice(places)
    method = chance.choice(("gradients", "gradients", "weights"))
    storage = chance.choice(("disk", "small disk", "s3"))
    most = 4 if place in LOCAL_PLACES else 3
    workers = 1 if place == "one process" else chance.randint(2, most)
    servers = chance.randint(1, 2) if place == "ps" else 0
    if place == "ps":
        method = "gradients"
    return Plan(place, workers, servers, method, storage, chance.random() < 0.4)


def possible_places() -> tuple[str, ...]:
    """Return the places that this machine has."""
    missing = {"hosts": why_not(), "slurm": NO_SLURM}
    for place, reason in missing.items():
        if reason:
            print(f"without {place}: {reason}", flush=True)
    return tuple(place for place in PLACES if not missing.get(place))


@dataclass
class World:
    """What all rounds share."""

    s3: str
    """The URL of moto's server."""
    master: Callable[[], str]
    """Starts Spark if it does not run yet; returns the URL of its master."""
    slurm: dict[str, str]
    """The environment in which Slurm's commands find their cluster."""
    records: Path
    """A folder of TFRecords."""
    unit_s: float
    """How long a training in one process takes now, from its command to its end."""


@dataclass
class Scene:
    """What faults can touch in a round."""

    plan: Plan
    folder: Path
    run_dir: str
    environment: dict[str, str]
    chance: random.Random
    world: World
    data: Path | None
    """The folder of TFRecords, if the training reads them."""
    proxy: Proxy | None = None
    disk: Path | None = None
    """The small disk of the run folder."""
    hosts: list[tuple[str, str]] = field(default_factory=list)
    """Names and addresses of hosts in namespaces."""
    running: list[Program] = field(default_factory=list)
    """The commands of this attempt."""
    others: list[Program] = field(default_factory=list)
    """Second commands, which faults do not touch."""
    ports: set[int] = field(default_factory=set)
    """Where processes of this round were seen to listen."""
    happened: list[dict[str, Any]] = field(default_factory=list)
    """The faults of the round, in their order."""
    quiet_since: float = 0.0
    """When the last fault was over."""

    def processes(self) -> list[int]:
        """All processes of this attempt."""
        return sorted({pid for each in self.running for pid in each.processes()})

    @property
    def flags(self) -> list[str]:
        """The command without its place."""
        flags = ["train", "smoke", "--run-dir", self.run_dir, *QUICK]
        flags += ["--actions", str(self.folder / "own.py:slowly")]
        return [*flags, *experiment_flags(self.plan.method, self.data)]

    def start(self) -> None:
        """Start the commands of an attempt."""
        self.running = []
        for inside, environment in self._tasks():
            arguments = [*self.flags, *self._place_flags()]
            self.running.append(self._program(arguments, environment, inside))

    def start_other(self) -> Program:
        """Start the same training once more, on this machine."""
        other = self._program(self.flags, {})
        self.others.append(other)
        return other

    def _program(
        self, arguments: list[str], environment: dict[str, str], inside: tuple[str, ...] = ()
    ) -> Program:
        return Program(arguments, self.folder, self.environment | environment, inside)

    def _tasks(self) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
        """Yield how each command of the place is started, and its environment."""
        plan = self.plan
        if plan.place == "slurm":
            tasks = ("--nodes", "2", "--ntasks", str(plan.workers))
            yield ("srun", "--export", "ALL", *tasks), self.world.slurm
        elif plan.place == "tf_config":
            cluster = {"worker": free_addresses(plan.workers)}
            for index in range(plan.workers):
                yield (), tf_config(cluster, "worker", index, model_dir="")
        elif plan.place == "hosts":
            cluster = {"worker": [f"{address}:5000" for _, address in self.hosts]}
            for index, (name, _) in enumerate(self.hosts):
                inside = ("ip", "netns", "exec", name)
                yield inside, tf_config(cluster, "worker", index, model_dir="")
        else:
            yield (), {}

    def _place_flags(self) -> list[str]:
        plan, workers = self.plan, ["--workers", str(self.plan.workers)]
        match plan.place:
            case "local":
                return workers
            case "ps":
                return [*workers, "--ps", str(plan.servers)]
            case "ray":
                return ["--on", "ray", *workers]
            case "spark":
                settings = [
                    f"spark.cores.max={plan.workers}",
                    "spark.executor.cores=1",
                    "spark.executor.memory=512m",
                    "spark.ui.enabled=false",
                    f"spark.executorEnv.{MARK}={{mark}}",
                    *(f"spark.executorEnv.{k}={v}" for k, v in self.environment.items()),
                ]
                master = ["--spark.master", self.world.master(), "--spark.conf", *settings]
                return ["--on", "spark", *master, *workers]
        return []


def experiment_flags(method: str, records: Path | None) -> Iterator[str]:
    if method == "weights":
        yield from ("--sync.method", "weights", "--sync.every", "3")
    if records:
        yield from ("--data.source", "tfrecord", "--data.dir", str(records))
        yield from ("--data.image-size", "16", "--augment.padding", "0")


def build_scene(plan: Plan, chance: random.Random, world: World, stack: ExitStack) -> Scene:
    folder = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))  # Ray's sockets need a short name
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    (folder / "t").mkdir()
    (folder / "own.py").write_text(ACTION)
    environment = LIMITS | {"PACELINE_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "t")}
    scene = Scene(plan, folder, str(folder / "run"), environment, chance, world, None)
    if plan.place == "hosts":
        scene.hosts = stack.enter_context(many_hosts(plan.workers))
        connect_here()
    if plan.storage == "small disk":
        scene.disk = stack.enter_context(small_disk(folder))
        scene.run_dir = str(scene.disk / "run")
    if plan.storage == "s3":
        scene.proxy = Proxy(int(world.s3.rsplit(":", 1)[1]))
        stack.callback(scene.proxy.close)
        scene.run_dir = f"s3://bucket/{folder.name}"
        address = UPLINK if scene.hosts else "127.0.0.1"
        environment["AWS_ENDPOINT_URL"] = f"http://{address}:{scene.proxy.port}"
        environment |= {
            k: v for k, v in os.environ.items() if k.startswith("AWS_") and "URL" not in k
        }
    if plan.records:
        scene.data = folder / "records"
        shutil.copytree(world.records, scene.data)
    return scene


def connect_here() -> None:
    """Connect this host to the switch of `many_hosts`; it goes with the switch."""
    device, switch = f"pc{os.getpid()}", switch_name()
    pair = ("link", "add", device, "type", "veth", "peer", "name", "uplink", "netns", switch)
    run("ip", *pair)
    run("ip", "-n", switch, "link", "set", "uplink", "master", "bridge", "up")
    run("ip", "addr", "add", f"{UPLINK}/24", "dev", device)
    run("ip", "link", "set", device, "up")


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def start_spark(folder: Path, stack: ExitStack) -> str:
    """Start a Spark cluster that ends with the stack; return its URL."""
    folder.mkdir()
    script, url = Path(__file__).with_name("spark_cluster.py"), folder / "url"
    process = subprocess.Popen(
        [sys.executable, script, folder, str(os.getpid())],
        env=os.environ | {"SPARK_CLUSTER_TIMEOUT_S": "3000"},  # the machine may be paused
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    CLOCK.wait_until(url.exists, 600, lambda: "Spark did not start")
    return url.read_text().strip()
