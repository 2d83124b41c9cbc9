"""The scene of a round of `make chaos`, and what can happen in it.

A `Plan` follows from the seed alone. A `Scene` is what was built for it, for faults to touch. A
fault knows the processes and files of a run, nothing of its insides. Faults overlap: each has its
own thread. A fault puts right what it broke, and returns what it did; None if it could do nothing.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.link import ADDRESSES, Link, two_hosts

from fault_runs import with_faults
from helpers import Ended, Program, free_addresses, tf_config, write_own_code
from s3_server import KEYS, Proxy

LIMITS = {"PACELINE_LOCK_TIMEOUT_S": "20", "PACELINE_STORAGE_PATIENCE_S": "15"}
"""Shorter than usual, so that faults that last happen too."""
PLACES = {
    "one process": "",
    "local": "--workers {workers}",
    "ps": "--workers {workers} --ps {servers}",
    "tf_config": "",
    "two hosts": "",
    "ray": "--on ray --workers {workers}",
}
"""The flags of each place. `two hosts` is TF_CONFIG in two network namespaces with a link."""
TASKS = ("tf_config", "two hosts")
"""Places in which each worker is a command of its own."""
OUTPUTS = {"full": "> /dev/full", "closed": ">&-", "gone": "> >(head -c 1 > /dev/null)"}
"""What can become of the standard output of the commands; training goes on without it."""


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
    output: str
    """What becomes of its standard output: one of OUTPUTS, or it is read."""

    @classmethod
    def draw(cls, chance: random.Random) -> Plan:
        place = chance.choice(list(PLACES))
        workers = {"one process": 1, "two hosts": 2}.get(place) or chance.randint(2, 3)
        method = "gradients" if place == "ps" else chance.choice(("gradients", "weights"))
        # the S3 server is on neither of two hosts
        storage = chance.choice(("disk", "small disk", *(["s3"] if place != "two hosts" else [])))
        records, output = chance.random() < 0.4, chance.choice(["read"] * 5 + list(OUTPUTS))
        return cls(place, workers, chance.randint(1, 2), method, storage, records, output)


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
    link: Link | None = None
    hosts: tuple[str, ...] = ()
    addresses: list[str] = field(default_factory=list)
    """Of the tasks of this attempt."""
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
        if self.plan.place in TASKS:
            self.addresses = free_addresses(self.plan.workers)
            if self.hosts:
                ports = [each.rpartition(":")[2] for each in self.addresses]
                self.addresses = [":".join(each) for each in zip(ADDRESSES, ports, strict=True)]
            cluster, count = {"worker": self.addresses}, self.plan.workers
            tasks = [tf_config(cluster, "worker", index, model_dir="") for index in range(count)]
        flags = PLACES[self.plan.place].format(**asdict(self.plan)).split()
        hosts = self.hosts or [""] * len(tasks)
        self.running = [self._program(*each, *flags) for each in zip(tasks, hosts, strict=True)]

    def start_other(self) -> Program:
        """Start the same run once more, on this machine."""
        self.others.append(self._program({}, ""))
        return self.others[-1]

    def _program(self, environment: dict[str, str], host: str, *flags: str) -> Program:
        words = ["train", "smoke", "--run-dir", self.run_dir, "--actions", "own.py:slowly"]
        words += ["--stall-timeout", "20", "--start-timeout", "120"]
        words += [*experiment_flags(self.plan.method, self.data), *flags]
        inside = ("ip", "netns", "exec", host) if host else ()
        if flow := OUTPUTS.get(self.plan.output):
            inside += ("bash", "-c", f'exec "$@" {flow}', "bash")
        return Program(words, self.folder, self.environment | environment, inside)


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
    environment |= with_faults(CLOCK=str(folder / "clock"))
    scene = Scene(plan, folder, str(folder / "run"), environment, chance)
    if plan.place == "two hosts":
        scene.link = Link(1000.0, delay_s=0.001)
        scene.hosts = stack.enter_context(two_hosts(scene.link))
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


Fault = Callable[[Scene, float], str | None]
"""(scene, seconds that it lasts) -> what happened."""


def _signal(number: int) -> Fault:
    def send(scene: Scene, seconds: float) -> str | None:
        if not (pids := scene.processes()):
            return None
        pid = scene.chance.choice(pids)
        what = f"{signal.Signals(number).name} to {names([pid])}"
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(seconds)
                os.kill(pid, signal.SIGCONT)
        return what

    return send


def _hang_up(scene: Scene, seconds: float) -> str | None:
    """A terminal is closed: its command gets a SIGHUP."""
    command = scene.chance.choice(scene.running)
    with suppress(ProcessLookupError):
        os.kill(command.pid, signal.SIGHUP)
    return f"SIGHUP to the command {command.pid}"


def _silent_peer(scene: Scene, seconds: float) -> str | None:
    """A task ends, and something that never answers is at its address."""
    if scene.plan.place != "tf_config":
        return None
    index = scene.chance.randrange(scene.plan.workers)
    for pid in scene.running[index].processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    host, port = scene.addresses[index].split(":")
    with suppress(OSError), socket.create_server((host, int(port))):
        time.sleep(seconds)
    return f"nobody answers at {scene.addresses[index]}"


def _lossy_link(scene: Scene, seconds: float) -> str | None:
    if not scene.link:
        return None
    scene.link.lost = lost = scene.chance.choice((0.02, 0.2, 0.5, 1.0))
    time.sleep(seconds)
    scene.link.lost = 0.0
    return f"{lost:.0%} of the packets are lost"


def _clock_jump(scene: Scene, seconds: float) -> str | None:
    """The clock of all processes jumps, and later back."""
    jump = scene.chance.choice((-86_400, -300, 300, 86_400, 1e9))
    clock = scene.folder / "clock"
    clock.write_text(str(jump))
    time.sleep(seconds)
    clock.unlink(missing_ok=True)
    return f"clocks jump by {jump:.0f} s"


def _foreign_file(scene: Scene, seconds: float) -> str | None:
    """Somebody puts something into the run folder."""
    folder = Path(scene.run_dir)
    places = ("", "checkpoints", "events")
    there = [folder / each for each in places if (folder / each).is_dir()]
    if scene.proxy or not there:
        return None
    target = scene.chance.choice(there) / f"step-99999999.{scene.chance.choice(STRANGE)}"
    kind = scene.chance.choice(("text", "link", "pipe", "folder"))
    with suppress(OSError):
        match kind:
            case "text":
                target.write_text("something else")
            case "link":
                target.symlink_to(scene.folder / "own.py")
            case "pipe":
                os.mkfifo(target)
            case "folder":
                target.mkdir()
        time.sleep(seconds)
        target.rmdir() if kind == "folder" else target.unlink()
    return f"a {kind} is at {target.parent.name}/{target.name}"


def _storage(mode: str) -> Fault:
    def fail(scene: Scene, seconds: float) -> str | None:
        if not scene.proxy:
            return None
        scene.proxy.mode = mode
        time.sleep(seconds)
        scene.proxy.mode = "good"
        return f"storage is {mode}"

    return fail


def _full_disk(scene: Scene, seconds: float) -> str | None:
    if not scene.disk:
        return None
    ballast = scene.disk / f"ballast-{time.monotonic_ns()}"
    with suppress(OSError), open(ballast, "wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    time.sleep(seconds)
    ballast.unlink(missing_ok=True)
    return "the disk is full"


def _vanished_data(scene: Scene, seconds: float) -> str | None:
    if not (file := _shard(scene)):
        return None
    hidden = scene.folder / f"hidden-{file.name}"
    with suppress(FileNotFoundError):
        file.rename(hidden)
        time.sleep(seconds)
        hidden.rename(file)
        return f"{file.name} is gone"
    return None


def _flipped_bit(scene: Scene, seconds: float) -> str | None:
    if not (file := _shard(scene)):
        return None
    # the descriptor stays that of the file, though another fault may hide it
    with suppress(FileNotFoundError), open(file, "r+b", buffering=0) as handle:
        number, at = handle.fileno(), scene.chance.randrange(file.stat().st_size)
        for pause in (seconds, 0.0):
            os.pwrite(number, bytes([os.pread(number, 1, at)[0] ^ 64]), at)
            time.sleep(pause)
        return f"byte {at} of {file.name} is different"
    return None


def _shard(scene: Scene) -> Path | None:
    """Return a shard that no other fault has hidden."""
    shards = sorted(scene.data.glob("*-of-*")) if scene.data else []
    return scene.chance.choice(shards) if shards else None


def _second_command(scene: Scene, seconds: float) -> str | None:
    """The same run once more: it is refused, takes over, or finds the run finished."""
    deadline = time.monotonic() + 300
    ended = wait(scene.start_other(), lambda: deadline)
    assert ended.code in (0, 1, 2), f"the second command: {ended}"
    assert "Traceback" not in ended.err, f"the second command: {ended.err}"
    return f"a second command: {ended.code} {ended.err.strip()[-200:]}"


def wait(program: Program, deadline: Callable[[], float]) -> Ended:
    """Wait for a program until a time that may change."""
    while True:
        try:
            return program.wait(0.5)
        except subprocess.TimeoutExpired:
            late = time.monotonic() > deadline()
            assert not late, f"a command takes too long: {names(program.processes())}"


def names(pids: Iterable[int]) -> str:
    """Return the commands of processes."""
    found = []
    for pid in pids:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found.append(f"{pid} {b' '.join(words[:4]).decode(errors='replace')[-60:].strip()}")
    return "; ".join(found)


KILLED = r"SIGKILL|exit code -9|code 137|lost|no answer|gone|died|ended without|Connection|connect"
STOPPED = r"stopped or starved|makes no progress|no sign of life|no answer|lost|gone|died"
STRANGE = ("safetensors", "json", "tfevents", "safetensors.tmp")
STORAGE = r"s3://|storage|sign of life|no progress"
FAULTS: dict[str, tuple[Fault, str]] = {
    "kill": (_signal(signal.SIGKILL), KILLED),
    "terminate": (_signal(signal.SIGTERM), rf"SIGTERM|exit code 143|{KILLED}"),
    "stop": (_signal(signal.SIGSTOP), STOPPED),
    "storage refuses": (_storage("refusing"), STORAGE),
    "storage fails": (_storage("failing"), STORAGE),
    "storage is slow": (_storage("slow"), STORAGE),
    "full disk": (_full_disk, r"No space left|disk is full|is full"),
    "vanished data": (_vanished_data, r"-of-0000|records"),
    "flipped bit": (_flipped_bit, r"-of-0000|records"),
    "second command": (_second_command, r"another process|taken over"),
    "hang up": (_hang_up, rf"SIGHUP|exit code 129|{KILLED}"),
    "silent peer": (_silent_peer, rf"{STOPPED}|{KILLED}"),
    "lossy link": (_lossy_link, rf"{STOPPED}|{KILLED}"),
    "clock jump": (_clock_jump, "(?!)"),
    "foreign file": (_foreign_file, "step-99999999"),
}
"""Each fault, and what a message says if it ended a command."""


def possible(scene: Scene) -> list[str]:
    """Return the faults that can happen in a scene. Those of its storage are more frequent."""
    found = ["kill", "kill", "terminate", "stop", "stop", "second command", "hang up"]
    found += ["clock jump"] + ["silent peer"] * 4 * (scene.plan.place == "tf_config")
    found += ["lossy link"] * 4 if scene.link else []
    found += [] if scene.proxy else ["foreign file"]
    found += ["storage refuses", "storage fails", "storage is slow"] * 2 if scene.proxy else []
    found += ["full disk"] * 3 if scene.disk else []
    found += ["vanished data", "flipped bit"] * 2 if scene.data else []
    return found
