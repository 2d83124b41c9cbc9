"""Hosts on this machine: network namespaces with own addresses and links. Root only.

The link has a given rate and delay. The rate is set in the kernel (`tc ... tbf`). Many kernels lack
netem for the delay, so a delayed link goes through this process, which holds every packet of a TUN
device for that time before it sends it to the other. A link without delay is a plain veth pair.
"""

import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ADDRESSES = ("10.213.77.1", "10.213.77.2")
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x1001
_MTU = 1500


@dataclass
class Link:
    """Of each direction: megabits per second, and with a delay also the share of lost packets."""

    mbit_per_s: float
    delay_s: float = 0.0
    lost: float = 0.0
    """It can change while the link is used."""

    def __str__(self) -> str:
        rate = (
            f"{self.mbit_per_s / 1000:g} Gbit/s"
            if self.mbit_per_s >= 1000
            else f"{self.mbit_per_s:g} Mbit/s"
        )
        return rate + (f", {1000 * self.delay_s:g} ms" if self.delay_s else "")


def why_not() -> str:
    """Return why this machine cannot have such hosts, or an empty string if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if not shutil.which(name)]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    if run("ip", "netns", "add", f"paceline-try-{os.getpid()}", check=False):
        return "this kernel or container allows no network namespaces"
    run("ip", "netns", "del", f"paceline-try-{os.getpid()}")
    return ""


def run(*command: str, check: bool = True) -> int:
    return subprocess.run(command, check=check, capture_output=True, timeout=30).returncode


@contextmanager
def two_hosts(link: Link | None = None) -> Iterator[tuple[str, str]]:
    """Yield the names of two new namespaces at ADDRESSES, and remove them afterwards.

    Without a `link` the connection is as fast as the machine.
    """
    names = (f"paceline-a-{os.getpid()}", f"paceline-b-{os.getpid()}")
    devices = (f"pla{os.getpid()}", f"plb{os.getpid()}")
    forwarder = None
    try:
        for name in names:
            run("ip", "netns", "add", name)
        if link and link.delay_s:
            forwarder = _Forwarder(devices, link)
        else:
            run("ip", "link", "add", devices[0], "type", "veth", "peer", "name", devices[1])
        for name, device, address in zip(names, devices, ADDRESSES, strict=True):
            run("ip", "link", "set", device, "netns", name)
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", device)
            run("ip", "-n", name, "link", "set", device, "mtu", str(_MTU), "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            if link:
                _limit(name, device, link.mbit_per_s)
        yield names
    finally:
        if forwarder:
            forwarder.close()
        for name in names:
            run("ip", "netns", "del", name, check=False)
        run("ip", "link", "del", devices[0], check=False)


def _limit(name: str, device: str, mbit_per_s: float) -> None:
    """Limit the rate of what a device of a host sends."""
    burst = max(16_000, int(mbit_per_s * 1e6 / 8 / 250))  # what passes between two clock ticks
    queue = f"tbf rate {mbit_per_s:g}mbit burst {burst} latency 400ms"
    run("tc", "-n", name, "qdisc", "add", "dev", device, "root", *queue.split())


def switch_name() -> str:
    """Return the namespace of the switch of `many_hosts`; the port of host i there is port{i}."""
    return f"paceline-s-{os.getpid()}"


@contextmanager
def many_hosts(count: int, mbit_per_s: float = 0) -> Iterator[list[tuple[str, str]]]:
    """Yield names and addresses of new namespaces that are connected by a switch.

    With `mbit_per_s`, the link of every host has this rate each way. Else it is as fast as the
    machine.
    """
    switch, names = switch_name(), [f"paceline-{i}-{os.getpid()}" for i in range(count)]
    hosts = [(name, f"10.213.78.{i + 1}") for i, name in enumerate(names)]
    try:
        for name in (switch, *names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        for i, (name, address) in enumerate(hosts):
            port = f"port{i}"
            pair = ("link", "add", port, "type", "veth", "peer", "name", "eth", "netns", name)
            run("ip", "-n", switch, *pair)
            run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth")
            run("ip", "-n", name, "link", "set", "eth", "up")
            if mbit_per_s:
                _limit(switch, port, mbit_per_s)
                _limit(name, "eth", mbit_per_s)
        yield hosts
    finally:
        for name in (*names, switch):
            run("ip", "netns", "del", name, check=False)


def cut(name: str) -> None:
    """Take the link of a host down."""
    device = subprocess.run(
        ["ip", "-n", name, "-o", "link"], capture_output=True, text=True, check=True
    ).stdout
    run(
        "ip",
        "-n",
        name,
        "link",
        "set",
        next(w.split("@")[0].rstrip(":") for w in device.split() if w.startswith("pl")),
        "down",
    )


class _Forwarder:
    """Two TUN devices in a thread: what one sends comes out of the other after the delay."""

    def __init__(self, devices: tuple[str, str], link: Link) -> None:
        self._files, self._link, self._closed = [_tun(name) for name in devices], link, False
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def _forward(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        number = 0
        while not self._closed:
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.1
            for file in select.select(self._files, [], [], min(pause, 0.1))[0]:
                other = self._files[1 - self._files.index(file)]
                number, packet = number + 1, os.read(file, 65536)
                if random.random() >= self._link.lost:
                    arrives = time.monotonic() + self._link.delay_s
                    heapq.heappush(waiting, (arrives, number, other, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, file, packet = heapq.heappop(waiting)
                try:
                    os.write(file, packet)
                except OSError:  # the other device is not up, or down again: the packet is lost
                    continue

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        for file in self._files:
            os.close(file)


def _tun(name: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    return file
