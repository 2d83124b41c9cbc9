"""The faults of `make chaos`: each is something that happens to a run, and passes.

A fault knows the processes and files of a run, nothing of its insides. Faults overlap: each has its
own thread. A fault puts right what it broke, and returns what it did; None if it could do nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from chaos_scene import Scene
from helpers import Ended, Program

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
}
"""Each fault, and what a message says if it ended a command."""


def possible(scene: Scene) -> list[str]:
    """Return the faults that can happen in a scene. Those of its storage are more frequent."""
    found = ["kill", "kill", "terminate", "stop", "stop", "second command"]
    found += ["storage refuses", "storage fails", "storage is slow"] * 2 if scene.proxy else []
    found += ["full disk"] * 3 if scene.disk else []
    found += ["vanished data", "flipped bit"] * 2 if scene.data else []
    return found
