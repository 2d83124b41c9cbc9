"""The scene of a round of `make chaos`: what is trained, where, and how its commands are started.

A `Plan` follows from the seed alone. A `Scene` is what was built for it, for faults to touch.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from helpers import Program, free_addresses, tf_config, write_own_code
from s3_server import KEYS, Proxy

LIMITS = {"PACELINE_LOCK_TIMEOUT_S": "20", "PACELINE_STORAGE_PATIENCE_S": "15"}
"""Shorter than usual, so that faults that last happen too."""
PLACES = {
    "one process": "",
    "local": "--workers {workers}",
    "ps": "--workers {workers} --ps {servers}",
    "tf_config": "",
    "ray": "--on ray --workers {workers}",
}
"""The flags of each place."""


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
    """Whether the run reads TFRecords."""

    @classmethod
    def draw(cls, chance: random.Random) -> Plan:
        place = chance.choice(list(PLACES))
        workers = 1 if place == "one process" else chance.randint(2, 3)
        method = "gradients" if place == "ps" else chance.choice(("gradients", "weights"))
        storage = chance.choice(("disk", "small disk", "s3"))
        return cls(place, workers, chance.randint(1, 2), method, storage, chance.random() < 0.4)


@dataclass
class Scene:
    """What faults can touch in a round."""

    plan: Plan
    folder: Path
    run_dir: str
    environment: dict[str, str]
    chance: random.Random
    data: Path | None = None
    """The folder of TFRecords, if the run reads them."""
    proxy: Proxy | None = None
    disk: Path | None = None
    """The small disk of the run folder."""
    running: list[Program] = field(default_factory=list)
    """The commands of this attempt."""
    others: list[Program] = field(default_factory=list)
    """Second commands, which faults do not touch."""
    happened: list[dict[str, Any]] = field(default_factory=list)
    """The faults of the round, in their order."""
    quiet_since: float = 0.0
    """When the last fault was over."""

    def processes(self) -> list[int]:
        """All processes of this attempt."""
        return sorted({pid for each in self.running for pid in each.processes()})

    def start(self) -> None:
        """Start the commands of an attempt."""
        tasks: list[dict[str, str]] = [{}]
        if self.plan.place == "tf_config":
            cluster, count = {"worker": free_addresses(self.plan.workers)}, self.plan.workers
            tasks = [tf_config(cluster, "worker", index, model_dir="") for index in range(count)]
        flags = PLACES[self.plan.place].format(**asdict(self.plan)).split()
        self.running = [self._program(each, *flags) for each in tasks]

    def start_other(self) -> Program:
        """Start the same run once more, on this machine."""
        self.others.append(self._program({}))
        return self.others[-1]

    def _program(self, environment: dict[str, str], *flags: str) -> Program:
        words = ["train", "smoke", "--run-dir", self.run_dir, "--actions", "own.py:slowly"]
        words += ["--stall-timeout", "20", "--start-timeout", "120"]
        words += [*experiment_flags(self.plan.method, self.data), *flags]
        return Program(words, self.folder, self.environment | environment)


def experiment_flags(method: str, records: Path | None) -> Iterator[str]:
    if method == "weights":
        yield from ("--sync.method", "weights", "--sync.every", "3")
    if records:
        yield from ("--data.source", "tfrecord", "--data.dir", str(records))
        yield from ("--data.image-size", "16", "--augment.padding", "0")


def build_scene(
    plan: Plan, chance: random.Random, stack: ExitStack, s3: str, records: Path
) -> Scene:
    folder = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))  # Ray's sockets need a short name
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    (folder / "t").mkdir()
    write_own_code(folder)
    environment = LIMITS | {"PACELINE_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "t")}
    scene = Scene(plan, folder, str(folder / "run"), environment, chance)
    if plan.storage == "small disk":
        scene.disk = folder / "disk"
        scene.disk.mkdir()
        mount = ("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(scene.disk))
        subprocess.run(mount, check=True)
        stack.callback(subprocess.run, ["umount", "-l", str(scene.disk)], check=True)
        scene.run_dir = str(scene.disk / "run")
    if plan.storage == "s3":
        scene.proxy = Proxy(int(s3.rsplit(":", 1)[1]))
        stack.callback(scene.proxy.close)
        scene.run_dir = f"s3://bucket/{folder.name}"
        environment |= KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{scene.proxy.port}"}
    if plan.records:
        scene.data = folder / "records"
        shutil.copytree(records, scene.data)
    return scene
