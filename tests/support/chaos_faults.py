"""The faults of `make chaos`: each is something that happens to a running training, and passes.

A fault knows the training's processes and files, nothing of its insides. Faults overlap: each has a
thread of its own. A fault puts right what it broke, and returns what it did; None if it could do
nothing.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.link import run, switch_name

from chaos_clock import CLOCK
from chaos_scene import Scene
from helpers import Ended

OTHER_LIMIT_S = 300.0
"""No second command may take longer."""

Fault = Callable[[Scene, float], str | None]
"""(scene, seconds that it lasts) -> what happened."""


def _victim(scene: Scene) -> tuple[int, str] | None:
    """Return a process of the training, and its name. Slurm's own are not its processes."""
    named = [(pid, _command(pid)) for pid in scene.processes()]
    named = [each for each in named if each[1] and not re.match("srun|ip netns", each[1])]
    return scene.chance.choice(named) if named else None


def _signal(number: int) -> Fault:
    def send(scene: Scene, seconds: float) -> str | None:
        if not (found := _victim(scene)):
            return None
        with suppress(ProcessLookupError):
            os.kill(found[0], number)
        return f"{signal.Signals(number).name} to {found[1]}"

    return send


def _stop(scene: Scene, seconds: float) -> str | None:
    if not (found := _victim(scene)):
        return None
    with suppress(ProcessLookupError):
        os.kill(found[0], signal.SIGSTOP)
    CLOCK.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(found[0], signal.SIGCONT)
    return f"SIGSTOP of {found[1]}"


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words[:4]).decode(errors="replace")[-60:].strip()
    return ""


def _storage(mode: str) -> Fault:
    def fail(scene: Scene, seconds: float) -> str | None:
        if not scene.proxy:
            return None
        scene.proxy.mode = mode
        CLOCK.sleep(seconds)
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
    CLOCK.sleep(seconds)
    ballast.unlink(missing_ok=True)
    return "the disk is full"


def _shard(scene: Scene) -> Path | None:
    """Return a shard that no other fault has hidden."""
    shards = sorted(scene.data.glob("*-of-*")) if scene.data else []
    return scene.chance.choice(shards) if shards else None


def _vanished_data(scene: Scene, seconds: float) -> str | None:
    if not (file := _shard(scene)):
        return None
    hidden = scene.folder / f"hidden-{file.name}"
    try:
        file.rename(hidden)
    except FileNotFoundError:
        return None
    CLOCK.sleep(seconds)
    hidden.rename(file)
    return f"{file.name} is gone"


def _flipped_bit(scene: Scene, seconds: float) -> str | None:
    if not (file := _shard(scene)):
        return None
    try:
        # the descriptor stays that of the file, though another fault may hide it
        with open(file, "r+b", buffering=0) as handle:
            at = scene.chance.randrange(os.fstat(handle.fileno()).st_size)
            _flip(handle.fileno(), at)
            CLOCK.sleep(seconds)
            _flip(handle.fileno(), at)
    except FileNotFoundError:
        return None
    return f"byte {at} of {file.name} is another"


def _flip(handle: int, at: int) -> None:
    os.pwrite(handle, bytes([os.pread(handle, 1, at)[0] ^ 64]), at)


def _cut_link(scene: Scene, seconds: float) -> str | None:
    if not scene.hosts:
        return None
    index = scene.chance.randrange(len(scene.hosts))
    port = ("ip", "-n", switch_name(), "link", "set", f"port{index}")
    run(*port, "down", check=False)
    CLOCK.sleep(seconds)
    run(*port, "up", check=False)
    return f"the link of host {index} is cut"


def _second_command(scene: Scene, seconds: float) -> str | None:
    """The same training once more: it is refused, takes over, or finds the run finished."""
    other = scene.start_other()
    deadline = CLOCK.now() + OTHER_LIMIT_S
    ended = wait(other, lambda: deadline, "the second command")
    line = (ended.err.strip().splitlines() or [""])[-1]
    assert ended.code in (0, 1, 2), f"the second command: {ended}"
    assert "Traceback" not in ended.err, f"the second command: {ended.err}"
    refused = "refused" if "another process" in line else line[:200]
    return f"a second command: {ended.code} {refused}"


def wait(program: Any, deadline: Callable[[], float], name: str) -> Ended:
    """Wait for a program by the clock that leaves out pauses."""
    import subprocess

    while True:
        try:
            return program.wait(0.5)
        except subprocess.TimeoutExpired:
            assert CLOCK.now() < deadline(), f"{name} takes too long: {states(program.processes())}"


def states(pids: Iterable[int]) -> str:
    """Return what processes do."""
    found = []
    for pid in pids:
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            where = Path(f"/proc/{pid}/wchan").read_text()
            found.append(f"{pid} {_command(pid)} {state} {where}")
    return "; ".join(found)


FAULTS: dict[str, Fault] = {
    "kill": _signal(signal.SIGKILL),
    "terminate": _signal(signal.SIGTERM),
    "stop": _stop,
    "storage refuses": _storage("refusing"),
    "storage fails": _storage("failing"),
    "storage is slow": _storage("slow"),
    "full disk": _full_disk,
    "vanished data": _vanished_data,
    "flipped bit": _flipped_bit,
    "cut link": _cut_link,
    "second command": _second_command,
}


def possible(scene: Scene) -> list[str]:
    """Return the faults that can happen in a scene. Signals are more frequent."""
    names = ["kill", "kill", "terminate", "stop", "stop", "second command"]
    if scene.proxy:
        names += ["storage refuses", "storage fails", "storage is slow"] * 2
    if scene.disk:
        names += ["full disk"] * 3
    if scene.data:
        names += ["vanished data", "flipped bit"] * 2
    if scene.hosts:
        names += ["cut link"] * 3
    return names
