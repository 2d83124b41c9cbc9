"""What a history begins with: the experiment, the place, and the commands that train."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from paceline.errors import Ended, UserError
from paceline.experiment.experiment import Experiment
from paceline.job import Cluster, Job, Place, Run
from paceline.launch import launch
from paceline.messages import Block, Message, Saved, Send, Start, Warn
from paceline.places import local
from paceline.places.platform_task import open_task
from paceline.storage.lease import LOCK_TIMEOUT_S
from paceline.supervise.interface import OpenPlace

from .machine import SimulatedWorker
from .network import Network, Session
from .storage import Bucket, Disk
from .world import Process, Violation, World, me, world

RECOVERY_S = 200.0
"""A command may take this much longer than its limits: pauses, a lease that is taken over, requests
that are repeated, and a survivor that saves."""
SPIN = 20
"""Work without progress ends after this many limits (`supervise.watchdog.WORKING_LIMITS`)."""


@dataclass(frozen=True)
class Plan:
    """What one seed decides before anything happens."""

    place: str
    workers: int
    replicas: int
    steps: int
    remote: bool
    start_timeout: float
    stall_timeout: float
    max_restarts: int
    min_workers: int

    @staticmethod
    def draw(chance: random.Random) -> Plan:
        place = chance.choice(["local", "local", "tf_config", "tf_config", "spark"])
        workers = chance.choice([1, 2, 2, 3]) if place == "local" else chance.choice([2, 2, 3])
        remote = chance.random() < 0.4
        return Plan(
            place=place,
            workers=workers,
            replicas=chance.choice([workers, workers + 1, 4, 5]),
            steps=chance.choice([4, 9, 14]),
            remote=remote,
            # a lease that was left behind is taken over after a minute
            start_timeout=chance.choice([100.0, 150.0] if remote else [15.0, 40.0]),
            stall_timeout=chance.choice([12.0, 20.0, 30.0]),
            max_restarts=chance.choice([0, 1, 3]),
            min_workers=chance.choice([0, 0, 1]),
        )

    @property
    def hosts(self) -> list[str]:
        """Each task of a platform and each worker of Spark has its own host."""
        return [f"host-{each}" for each in range(1 if self.place == "local" else self.workers)]


@dataclass
class Command:
    """One command of a person or a platform."""

    process: Process
    began: float
    is_second: bool = False
    useful_at: float = 0.0
    error: BaseException | None = None
    warnings: list[str] = field(default_factory=list)
    result: dict[str, Any] | None = None
    step: int = 0
    """The last step that its chief has reported."""
    trains: bool = False
    """Whether it has heard of a step since it started workers."""
    starts: int = 0
    """How often it has started workers since the last checkpoint."""
    saved: bool = False
    """Whether there was a checkpoint since it started workers."""


class Scene(World):
    """The world of one history: its hosts, disk, storage and commands."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed)
        self.plan = Plan.draw(self.chance)
        self.folder = folder
        self.run_dir = "s3://bucket/run" if self.plan.remote else str(folder / "run")
        self.network, self.bucket = Network(), Bucket(self)
        self.disk = Disk(None if self.plan.remote else folder / "run")
        self.stamps = count()
        self.differs: dict[str, int] = {}
        self.lacks = set[str]()
        """Hosts on which the data is missing."""
        self.workers = list[SimulatedWorker]()
        self.commands: dict[int, Command] = {}
        self.num_ended = 0
        """First commands of this attempt that have ended."""
        self.saved = 0
        """The step of the newest checkpoint that a chief has reported."""
        self.incomplete = False
        """Whether a worker was asked for its state while it was written."""
        self.slow_until = 0.0
        self.spun = False
        self.happened: list[Any] = []
        self.useful = self._note_useful
        self.place_module = SimpleNamespace(open_place=open_place)
        self.note(f"{self.plan}")

    def note(self, text: str) -> None:
        super().note(text.replace(str(self.folder), ""))  # its name differs each time

    def start(self, host: str, task: int | None = None, is_second: bool = False) -> Command:
        """Start a command on a host; `task` is its number on a platform."""
        number = len(self.commands) + 1
        process = Process(self, f"command {number}", host, number)
        command = self.commands[number] = Command(process, self.now, is_second, self.now)
        self.note(f"{process.name} begins on {host}")
        if not is_second:
            process.at_end.append(self._count)
        self.spawn(process, lambda: self._run(command, task))
        return command

    def _count(self) -> None:
        self.num_ended += 1

    def _run(self, command: Command, task: int | None) -> None:
        job = build_job(self.plan, self.run_dir, task)

        def listen(message: Message) -> None:
            match message:
                case Warn():
                    command.warnings.append(message.text)
                case Block():
                    command.trains = True
                case Saved():
                    command.saved = True
            self.note(f"{command.process.name} hears {str(message)[:150]}")
            if self.now < self.slow_until:
                self.sleep(2.0)

        try:
            command.result, code = launch(job, listen), 0
        except (UserError, Ended) as error:
            command.error, code = error, getattr(error, "exit_code", 2)
            self.note(f"{command.process.name}: {error}")
        self._note_useful(command.process)
        command.process.exit(code)

    def starts(self, number: int) -> None:
        """Check that a command starts its workers again only as often as the place allows."""
        command = self.commands[number]
        command.starts = 2 if command.saved else command.starts + 1
        command.saved = command.trains = False
        if command.starts > 1 + self.plan.max_restarts and not self.plan.min_workers:
            raise Violation(f"{command.process.name} starts its workers again too often")

    def sent(self, process: Process, message: Message) -> None:
        """Check what a chief sends when it sends it: nothing that was saved is lost."""
        if isinstance(message, Warn):
            self._check_silence(process, message.text)
        if process is not self.writer():
            return
        command = self.commands[process.command]
        match message:
            case Start():
                self._check_start(process, command, message.first_step)
            case Block():
                command.step = message.step
            case Saved():
                self.saved = max(self.saved, message.step)

    def _check_start(self, process: Process, command: Command, step: int) -> None:
        if step < self.saved:
            raise Violation(f"{process.name} begins at {step}, but {self.saved} is saved")
        survives = self.plan.workers > 1 and not self.plan.remote and not self.incomplete
        is_alone = [each.name for each in self.recent(command)] == ["kill worker"]
        if step < command.step and survives and is_alone:
            raise Violation(f"{process.name} begins at {step}; a survivor had {command.step}")

    def _check_silence(self, process: Process, text: str) -> None:
        """Check that a holder of the lease that is called silent was silent.

        Who stood still itself may not have seen the last sign of life, and is refused by storage.
        """
        if not (found := re.match(r"pid (\d+) on .* shows no sign of life", text)):
            return
        (holder,) = (each for each in self.processes if each.pid == int(found[1]))
        looked = self.now - process.frozen_at > 2 * LOCK_TIMEOUT_S
        old = self.now - self.bucket.changed_at > 5.0
        if looked and old and self.bucket.is_held_by(holder):
            raise Violation(f"{process.name} calls {holder.name} silent, which is alive")

    def writer(self) -> Process | None:
        """Return the process that may write the run now."""
        if self.plan.remote:
            return self.bucket.owners.get(self.bucket.lease["owner"]["token"])
        return self.disk.holder

    def recent(self, command: Command) -> list[Any]:
        """Return the faults since a command began."""
        return [each for each in self.happened if each.end >= command.began - 1.0]

    def _note_useful(self, process: Process) -> None:
        """Check that a command has not waited longer than its limits allow."""
        command = self.commands[process.command]
        waited, plan = self.now - command.useful_at, self.plan
        command.useful_at = self.now
        limit = max(plan.start_timeout, plan.stall_timeout) * (SPIN if self.spun else 1)
        if waited > limit + RECOVERY_S:
            raise Violation(f"{command.process.name} waited {waited:.0f} s without a limit")

    def running(self, command: int | None = None) -> list[Process]:
        """Return the processes that run now."""
        return [each for each in self.processes if each.alive and command in (None, each.command)]


@cache
def build_job(plan: Plan, run_dir: str, task: int | None) -> Job:
    experiment = Experiment(
        replicas=plan.replicas,
        global_batch_size=4 * plan.replicas,
        steps=plan.steps,
        evaluate_every=0.3,
        save_every=0.3,
    )
    place = Place(
        on=plan.place,
        workers=plan.workers,
        start_timeout=plan.start_timeout,
        stall_timeout=plan.stall_timeout,
        max_restarts=plan.max_restarts,
        min_workers=min(plan.min_workers, plan.workers),
    )
    cluster = Cluster() if task is None else Cluster(addresses(plan), task)
    return Job(experiment, place, Run(run_dir), cluster)


def addresses(plan: Plan) -> tuple[str, ...]:
    return tuple(f"{host}:1" for host in plan.hosts)


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """As the module of a place: `local` and tasks of a platform are the real ones."""
    if job.place.on == "local":
        with local.open_place(job, listen) as opened:
            yield opened
    elif job.place.on == "tf_config":
        yield open_task(job, job.cluster, "TF_CONFIG", listen)
    else:
        yield OpenPlace(job, lambda workers: executors(job, workers), listen)


@contextmanager
def executors(job: Job, workers: int) -> Iterator[list[SimulatedWorker]]:
    """Yield workers on several hosts, which share a disk, as Spark's executors do."""
    session, place = Session(world().network, workers), job.place.with_workers(workers)
    own = me().host if me().host not in world().plan.hosts else "host"
    clusters = [Cluster(addresses(world().plan)[:workers], index) for index in range(workers)]
    yield [
        SimulatedWorker(replace(job, place=place, cluster=each), None, session, f"{own}-{index}")
        for index, each in enumerate(clusters)
    ]
