"""The simulated network between hosts, and the sessions in which workers exchange numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from paceline.engines.probe import TELL_S
from paceline.errors import UserError

from .world import Event, Process, Queue, me, world

LONGEST_S = 0.05
"""Of a packet."""
PROBE_S = 2.0
"""How long a task asks an address that does not answer (`engines.probe`)."""


class WorkerGone(Exception):
    """Another worker has ended: its connection is closed."""


class Network:
    """Links between hosts. A link that is cut is silent: what is sent arrives when it is back."""

    def __init__(self) -> None:
        self.listening: dict[str, Process] = {}
        self.reasons: dict[str, str] = {}
        """Why the task of an address, which tells the others, cannot train."""
        self.sessions: dict[tuple[str, ...], Session] = {}
        self._cut = set[str]()
        self._held = list[tuple[str, str, Callable[[], None]]]()
        self._last: dict[tuple[str, str], float] = {}

    def is_cut(self, one: str, other: str) -> bool:
        return one != other and bool({one, other} & self._cut)

    def cut(self, host: str) -> None:
        self._cut.add(host)

    def mend(self, host: str) -> None:
        self._cut.discard(host)
        held, self._held = self._held, []
        for source, target, action in held:
            self.send(source, target, action)

    def send(self, source: str, target: str, action: Callable[[], None]) -> None:
        """Do something at another host when a packet arrives there."""
        if self.is_cut(source, target):
            self._held.append((source, target, action))
        else:
            arrives = world().now + world().chance.uniform(0.0, LONGEST_S)
            arrives = max(arrives, self._last.get((source, target), 0.0))  # as TCP, in order
            self._last[source, target] = arrives
            world().at(arrives - world().now, action)

    def find_silent(self, addresses: list[str]) -> list[str]:
        """Ask all at the same time: it takes as long as the slowest."""
        silent = [address for address in addresses if not self._is_good(address)]
        slow = {address for address in silent if address in self.listening}
        world().sleep(PROBE_S if slow else LONGEST_S)  # so long a probe waits for an answer
        silent = [each for each in silent if each not in slow or not self._is_good(each)]
        for address in sorted(self.reasons.keys() & set(addresses) - set(silent)):
            raise UserError(f"the worker at {address} cannot train: {self.reasons[address]}")
        return silent

    def _is_good(self, address: str) -> bool:
        there = self.listening.get(address)
        if there is None or not there.alive:
            self.listening.pop(address, None)
            return False
        return not (there.frozen or self.is_cut(me().host, there.host))

    @contextmanager
    def answering(self, address: str) -> Iterator[None]:
        """As `engines.probe`: TensorFlow's server answers at the same address afterwards."""
        self.listening[address] = me()
        yield

    def tell(self, address: str, reason: str) -> None:
        """As `engines.probe`, in the parent of a task that cannot train."""
        self.listening[address], self.reasons[address] = me(), reason.rpartition("train: ")[2]
        me().at_end.append(lambda: self.reasons.pop(address, None))
        world().sleep(TELL_S)
        self.reasons.pop(address, None)

    def join(self, addresses: tuple[str, ...], rank: int) -> Session:
        """Return the session of tasks that start minutes apart."""
        session = self.sessions.get(addresses)
        if session is None or session.is_old(rank):
            session = self.sessions[addresses] = Session(self, len(addresses))
        session.join(rank)
        return session


class Session:
    """One connection of some workers, each with a rank. It ends with the first of them."""

    def __init__(self, network: Network, size: int) -> None:
        self._network = network
        self.members: list[Process | None] = [None] * size
        self._complete = Event()
        self._boxes = [Queue() for _ in range(size)]
        self._arrived: list[dict[int, dict[int, Any]]] = [{} for _ in range(size)]
        self._next = [0] * size
        self._gone: list[set[int]] = [set() for _ in range(size)]
        """Of each worker: whose end it has noticed."""

    def is_old(self, rank: int) -> bool:
        taken = self.members[rank]
        gone = any(member and not member.alive for member in self.members)
        return taken is not None or gone

    def join(self, rank: int) -> None:
        """Wait until all have joined."""
        process = self.members[rank] = me()
        process.at_end.append(lambda: self._leave(rank, process))
        if None not in self.members:
            self._complete.set()
        if any(member and not member.alive for member in self.members):
            raise WorkerGone
        self._complete.wait()

    def gather(self, rank: int, item: Any) -> list[Any]:
        """Return the items of all workers, in the order of their ranks."""
        number, size = self._next[rank], len(self.members)
        self._next[rank] += 1
        for other in range(size):
            if other != rank:
                self._post(rank, other, (number, rank, item))
        arrived = self._arrived[rank].setdefault(number, {})
        arrived[rank] = item
        while len(arrived) < size:
            if self._gone[rank] - arrived.keys():
                raise WorkerGone
            sent, other, given = self._boxes[rank].get()
            if sent < 0:
                self._gone[rank].add(other)
            else:
                self._arrived[rank].setdefault(sent, {})[other] = given
        del self._arrived[rank][number]
        return [arrived[other] for other in range(size)]

    def progressed(self) -> None:
        """Note that the workers have trained or evaluated together."""
        for member in self.members:
            assert member
            member.world.useful(member)

    def _post(self, source: int, target: int, item: Any) -> None:
        one, other = self.members[source], self.members[target]
        assert one
        assert other
        self._network.send(one.host, other.host, lambda: self._boxes[target].put(item))

    def _leave(self, rank: int, process: Process) -> None:
        for other, member in enumerate(self.members):
            if member and other != rank:
                notice = partial(self._boxes[other].put, (-1, rank, None))
                self._network.send(process.host, member.host, notice)
