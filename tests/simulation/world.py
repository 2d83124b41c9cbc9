"""The simulated clock, and processes with threads, signals and deaths. One task runs at a time.

A task is a greenlet: real code that blocks (`time.sleep`, `queue.get`) switches to the next event
instead. A killed process is never resumed, so no `finally` of it runs, as after a SIGKILL.
"""

from __future__ import annotations

import heapq
import queue
import random
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent, greenlet

WAITING_SHARE = 0.005
"""How much of a core a process uses that waits."""


class Killed(BaseException):
    """Unwinds the tasks of a history that is over."""


class Violation(BaseException):
    """An invariant does not hold. No `except Exception` of the real code sees it."""


class Process:
    """A simulated process on a host. `command` is the command that it belongs to."""

    def __init__(self, world: World, name: str, host: str, command: int = 0) -> None:
        self.world, self.name, self.host, self.command = world, name, host, command
        self.pid = next(world.pids)
        self.code: int | None = None
        self.frozen = self.hangs = self.spins = self.starves = False
        self.frozen_at = -1e9
        self._freezes = 0
        self.handlers: dict[int, Callable[[int, Any], None]] = {}
        self.at_end: list[Callable[[], None]] = []
        self.waits_for_end = deque[Waiter]()
        self.session: Any = None
        """The connection to the other workers of its attempt."""
        self._late = list[Callable[[], None]]()
        self._began = world.now
        self._work, self._busy_since = 0.0, -1.0
        world.processes.append(self)

    @property
    def alive(self) -> bool:
        return self.code is None

    def exit(self, code: int) -> None:
        """End this process, if it runs, and whatever depends on it."""
        if self.code is None:
            self.code = code
            self.world.note(f"{self.name} ends with {code}")
            for action in self.at_end:
                action()
            for waiter in self.waits_for_end:
                waiter.wake()

    def freeze(self) -> None:
        self.frozen = True
        self._freezes += 1

    def thaw(self) -> None:
        """End one of the reasons for which it is frozen."""
        self._freezes -= 1
        if self.frozen and not self._freezes:
            self.frozen, self.frozen_at = False, self.world.now
            late, self._late = self._late, []
            for action in late:
                self.world.at(0.0, action)

    def deliver(self, action: Callable[[], None]) -> None:
        """Do something in this process: now, when it is thawed, or never if it has ended."""
        if not self.alive:
            return
        if self.frozen:
            self._late.append(lambda: self.deliver(action))
            return
        before, self.world.current = self.world.current, self
        try:
            action()
        finally:
            self.world.current = before

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self.exit(-number)
        elif number in self.handlers:
            self.deliver(lambda: self.handlers.get(number, lambda *_: None)(number, None))
        elif number not in (signal.SIGUSR1, signal.SIGINT):
            self.deliver(lambda: self.exit(-number))

    def compute(self, seconds: float) -> None:
        """Work for some time in the current task."""
        self._busy_since = self.world.now
        self.world.sleep(seconds)
        if self.hangs:
            if not self.spins:
                self._work, self._busy_since = self.work(), -1.0
            self.world.sleep(1e9)
        self._work, self._busy_since = self.work(), -1.0

    def work(self) -> float:
        """Return the processor time so far. Only waiting is left out of `_work`."""
        busy = self.world.now - self._busy_since if self._busy_since >= 0 else 0.0
        return self._work + busy

    def process_time(self) -> float:
        return 0.5 + self.work() + WAITING_SHARE * (self.world.now - self._began)


class Waiter:
    """A task that is blocked, until `wake` or a timeout."""

    def __init__(self, world: World, timeout: float | None) -> None:
        self._world, self._process, self._task = world, me(), getcurrent()
        self._woken = False
        if timeout is not None:
            world.at(max(0.0, timeout), self.wake)

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._world.resume(self._process, self._task)

    def wait(self) -> None:
        self._world.hub.switch()
        if self._world.over:
            raise Killed


class World:
    """The events of one history, in the order of their times. The seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.current: Process | None = None
        self.processes = list[Process]()
        self.pids = count(100)
        self.lines = list[str]()
        self.over = False
        self.hub = getcurrent()
        self.tasks = list[greenlet]()
        self.useful: Callable[[Process], None] = lambda process: None
        """Called when a process does something that its command waits for."""
        self._events = list[tuple[float, int, Callable[[], None]]]()
        self._numbers = count()

    def note(self, text: str) -> None:
        self.lines.append(f"{self.now:9.3f} {text}")

    def at(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), action))

    def spawn(self, process: Process, action: Callable[[], None]) -> None:
        """Start a task of a process."""
        task = greenlet(action, parent=self.hub)
        self.tasks.append(task)
        self.resume(process, task)

    def resume(self, process: Process, task: greenlet) -> None:
        """Let a task run after the one that runs now."""
        self.at(0.0, lambda: process.deliver(task.switch))

    def run(self, is_done: Callable[[], bool], until: float) -> None:
        """Play the events until something is done; it is a violation if it takes too long."""
        while not is_done():
            if not self._events or self._events[0][0] > until:
                raise Violation(f"nothing ended until {until:.0f} s")
            self.now, _, action = heapq.heappop(self._events)
            action()

    def close(self) -> None:
        """Unwind every task that is left."""
        self.over = True
        for task in self.tasks:
            with suppress(BaseException):
                task.throw(Killed)

    def sleep(self, seconds: float) -> None:
        if self.over:
            raise Killed
        Waiter(self, seconds).wait()

    def pause(self, longest: float) -> None:
        """Take a random time, in which anything can happen to the process."""
        self.sleep(self.chance.uniform(0.0, longest))


ACTIVE: list[World] = []
"""The world of the history that is played now."""


def world() -> World:
    return ACTIVE[-1]


def me() -> Process:
    """Return the process whose code runs now."""
    process = world().current
    assert process, "no simulated process runs"
    return process


class Queue:
    """As `queue.Queue`."""

    def __init__(self, maxsize: int = 0) -> None:
        self._items = deque[Any]()
        self._waiters = deque[Waiter]()

    def put(self, item: Any) -> None:
        self._items.append(item)
        while self._waiters:
            self._waiters.popleft().wake()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else world().now + timeout
        while not self._items:
            if not block or (deadline is not None and world().now >= deadline):
                raise queue.Empty
            waiter = Waiter(world(), None if deadline is None else deadline - world().now)
            self._waiters.append(waiter)
            waiter.wait()
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def get_nowait(self) -> Any:
        return self.get(block=False)


class Event:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiters = deque[Waiter]()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        while self._waiters:
            self._waiters.popleft().wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            waiter = Waiter(world(), timeout)
            self._waiters.append(waiter)
            waiter.wait()
        return self._set


class Lock:
    """As `threading.Lock`."""

    def __init__(self) -> None:
        self._held = False
        self._waiters = deque[Waiter]()

    def __enter__(self) -> None:
        while self._held:
            waiter = Waiter(world(), None)
            self._waiters.append(waiter)
            waiter.wait()
        self._held = True

    def __exit__(self, *error: object) -> None:
        self._held = False
        if self._waiters and not world().over:
            self._waiters.popleft().wake()


class Thread:
    """As `threading.Thread`."""

    def __init__(
        self, target: Callable[..., object], args: tuple[Any, ...] = (), daemon: bool = False
    ) -> None:
        self._target, self._args = target, args
        self._ended = Event()

    def start(self) -> None:
        world().spawn(me(), self._run)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def _run(self) -> None:
        self._target(*self._args)
        self._ended.set()


TIME = SimpleNamespace(
    monotonic=lambda: world().now,
    time=lambda: 1.8e9 + world().now,
    perf_counter=lambda: world().now,
    sleep=lambda seconds: world().sleep(seconds),
    process_time=lambda: me().process_time(),
)
QUEUE = SimpleNamespace(Queue=Queue, Empty=queue.Empty)
THREADING = SimpleNamespace(
    Thread=Thread,
    Event=Event,
    Lock=Lock,
    current_thread=lambda: None,  # the thread that code runs in is always the main one
    main_thread=lambda: None,
)
