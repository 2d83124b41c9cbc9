"""Simulated worker processes, and the patches that put the real code on the simulated world."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from paceline import worker_process
from paceline.engines.probe import wait_for_tasks
from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Message, from_line, to_line
from paceline.run_folder.survivor import answer
from paceline.supervise.process import EXIT_S
from paceline.supervise.watchdog import Watchdog
from paceline.worker import Memory

from . import storage, training
from .network import Session, WorkerGone
from .world import QUEUE, THREADING, TIME, Event, Process, Queue, Waiter, me, world

BOOT_S = (0.2, 2.0)
"""How long Python takes to start; then the signals have handlers."""
PIPE_S = (0.01, 0.01, 0.5)
"""How long a line may take to its reader: a thread of the parent, which may get no processor."""
VERSIONS = {"python": "3"}
PATCHED = (
    *("launch", "worker", "worker_process", "chief"),
    *("supervise.group", "supervise.diagnosis", "supervise.recovery", "supervise.watchdog"),
    *("storage.files", "storage.lease", "storage.lock", "storage.remote", "storage.locations"),
    *("run_folder.folder", "run_folder.remote_run", "run_folder.checkpoints"),
    *("run_folder.checkpoint_file", "run_folder.comparison", "run_folder.records"),
    *("run_folder.survivor", "run_folder.actions"),
    *("places.local", "places.platform_task", "engines.probe"),
)
"""Modules that get the simulated clock, queues, threads and random names."""


class SimulatedWorker:
    """As `supervise.process.LocalWorker`. `session` connects the workers of one attempt."""

    log = None

    def __init__(
        self, job: Job, log: Path | None = None, session: Any = None, host: str = ""
    ) -> None:
        self.job, self._session, self._host = job, session, host
        self.process: Process | None = None

    def start(self) -> None:
        parent, name = me(), f"{me().name}/{self.job.cluster.name}"
        self.process = Process(world(), name, self._host or parent.host, parent.command)
        self._lines, self._requests, self._stop = Queue(), Queue(), Event()
        self._memory, self._last = Memory(), world().now
        self._pipe_s = world().chance.choice(PIPE_S)
        self.process.session = self._session
        self.process.at_end.append(lambda: self._to_parent(None))
        parent.at_end.append(self._end_with_parent)
        if self.job.cluster.index == 0:
            world().starts(parent.command)
        world().spawn(self.process, self._main)
        world().workers.append(self)

    def _end_with_parent(self) -> None:
        """A worker sees that its parent is gone, unless it is frozen."""
        process = self.process
        assert process
        world().at(0.1, lambda: process.deliver(lambda: process.exit(1)))

    def _main(self) -> None:
        process = me()
        process.compute(world().chance.uniform(*BOOT_S))
        process.handlers[signal.SIGTERM] = lambda *_: self._stop.set()
        world().spawn(process, self._listen)
        world().spawn(process, partial(worker_process._send_alive, self._send))
        process.exit(worker_process.run(self.job, self._send, self._stop, self._memory))

    def _listen(self) -> None:
        while True:
            answer(self._requests.get(), self._memory, self._send)

    def _send(self, message: Message) -> None:
        assert self.process
        world().sent(self.process, message)
        self._to_parent(to_line(message))

    def _to_parent(self, line: str | None) -> None:
        """A pipe keeps the order of its lines."""
        self._last = max(self._last, world().now + world().chance.uniform(0.0, self._pipe_s))
        lines = self._lines
        world().at(self._last - world().now, lambda: lines.put(line))

    def messages(self) -> Iterator[Message]:
        lines = self._lines
        while line := lines.get():
            yield from_line(line)

    def poll(self) -> int | None:
        return self.process.code if self.process else 0

    def wait(self) -> int:
        process = self.process
        assert process
        if process.alive:
            waiter = Waiter(world(), EXIT_S)
            process.waits_for_end.append(waiter)
            waiter.wait()
        process.exit(-signal.SIGKILL)
        assert process.code is not None
        return process.code

    def send_signal(self, number: int) -> None:
        assert self.process
        self.process.signal(number)

    def ask(self, request: str, **facts: int) -> None:
        self._requests.put({"request": request} | facts)

    def end(self) -> None:
        if self.process:
            self.process.exit(-signal.SIGKILL)


def connect(job: Job, wants_stop: Any) -> Any:
    """As `engines.collective.connect`."""
    rank = job.cluster.index
    if job.place.kind.platform_restarts and job.cluster.num_workers > 1:
        wait_for_tasks(job.cluster)
        session = world().network.join(job.cluster.addresses, rank)
    else:
        session = me().session or Session(world().network, 1)
        session.join(rank)
    return lambda core: training.SimulatedEngine(core, session, rank, wants_stop)


def fingerprint(job: Job, core: Any) -> dict[str, Any]:
    return {"experiment": job.experiment.digest(), "data": world().differs.get(me().host, 0)}


class Signals:
    """The module `signal`: handlers belong to the simulated process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        before = me().handlers.pop(number, None)
        if handler is not None:
            me().handlers[number] = handler
        return before


class OneByOne:
    """As `ThreadPoolExecutor`, in the current task."""

    def __init__(self, workers: int) -> None: ...

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *error: object) -> None: ...

    def submit(self, action: Any, *arguments: Any) -> Any:
        found = action(*arguments)
        return SimpleNamespace(result=lambda: found)

    def shutdown(self, cancel_futures: bool) -> None: ...


class NoBoard:
    """As `TensorBoard`, which is no part of the protocol."""

    def __init__(self, *_: Any) -> None: ...

    def settings(self, experiment: Any) -> None: ...

    def __call__(self, block: Any, evaluation: Any) -> None: ...


def note(text: object) -> None:
    if not world().over:
        world().note(f"log: {str(text).strip().splitlines()[-1]}")


def new_uuid() -> Any:
    return SimpleNamespace(hex=f"{world().chance.getrandbits(128):032x}")


def as_module(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names)
    return module


FAKES = {
    "paceline.build": {"build_core": training.build_core, "start_message": training.start_message},
    "paceline.fingerprint": {
        "fingerprint": fingerprint,
        "data_facts": lambda job, core: {"train": training.EXAMPLES},
        "code_digests": lambda job: {},
    },
}
"""Modules of TensorFlow, and what the protocol uses of them."""


def no_path(path: str) -> Path:
    raise OSError(f"{path} would tell about the process of the simulation")


def disk() -> storage.Disk:
    return world().disk


def specific() -> dict[str, dict[str, Any]]:
    """Return what is patched in single modules."""
    files_os, lock_os = storage.FilesOs(disk), storage.LockOs(disk)
    return {
        "launch": {"import_module": lambda name: world().place_module},
        "worker": {
            "connect": connect,
            "devices": SimpleNamespace(import_tensorflow=lambda *_: None),
        },
        "worker_process": {
            "Path": no_path,
            "_lost_another_worker": lambda error: isinstance(error, WorkerGone),
            "_to_user_error": lambda error, *_: error if isinstance(error, UserError) else None,
        },
        "chief": {
            "devices": SimpleNamespace(warnings=lambda job: []),
            "why_slow": lambda *_: "",
            "TensorBoard": NoBoard,
            "write_evaluation": lambda *_: None,
        },
        "supervise.group": {
            "Watchdog": partial(Watchdog, clock=TIME.monotonic),
            "signal": Signals(),
        },
        "storage.files": {"os": files_os, "tempfile": storage.FilesTempfile(disk)},
        "storage.lock": {
            "os": lock_os,
            "run_file": lock_os.run_file,
            "socket": SimpleNamespace(gethostname=lambda: me().host),
        },
        "storage.remote": {
            "ThreadPoolExecutor": OneByOne,
            "late_bar": lambda *_: nullcontext(lambda size: None),
        },
        "run_folder.folder": {
            "cached": lambda kind, url: world().folder / me().host,
            "machine": dict,
        },
        "run_folder.records": {"open": open_records},
        "run_folder.remote_run": {
            "open_to_write": storage.SimulatedStore,
            "Store": storage.SimulatedStore,
        },
        "places.local": {
            "_free_addresses": lambda count: tuple(f"a:{each}" for each in range(count)),
            "connect_neighbors": connect_neighbors,
            "LocalWorker": SimulatedWorker,
        },
        "places.platform_task": {
            "LocalWorker": SimulatedWorker,
            "tell": lambda address, reason: world().network.tell(address, reason),
            "find_silent": lambda addresses: world().network.find_silent(addresses),
        },
        "engines.probe": {
            "find_silent": lambda addresses: world().network.find_silent(addresses),
            "_answering": lambda address: world().network.answering(address),
        },
    }


def connect_neighbors(count: int) -> list[Session]:
    return [Session(world().network, count)] * count


def open_records(path: Path, mode: str, **settings: Any) -> storage.Appended:
    world().disk.write(path)
    return storage.Appended(path, mode, **settings)


@contextmanager
def patched() -> Iterator[None]:
    """Run the real code on the simulated world."""
    common = {"time": TIME, "threading": THREADING, "queue": QUEUE, "to_log": note}
    common |= {"uuid": SimpleNamespace(uuid4=new_uuid), "library_versions": lambda: VERSIONS}
    wanted = specific()
    with ExitStack() as stack:
        for name in PATCHED:
            module = import_module(f"paceline.{name}")
            own = {key: value for key, value in common.items() if hasattr(module, key)}
            for key, value in (own | wanted.get(name, {})).items():
                stack.enter_context(mock.patch.object(module, key, value, create=key == "open"))
        fakes = {name: as_module(name, **names) for name, names in FAKES.items()}
        stack.enter_context(mock.patch.dict(sys.modules, fakes))
        yield
