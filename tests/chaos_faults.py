"""The faults of `make chaos`: each is something that happens to a running training, and passes.

A fault knows the training's processes and files, nothing of its insides. Faults overlap: each has a
thread of its own.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from helpers import Program, paceline

DISK_MB = 24


@dataclass
class Scene:
    """What faults can touch in a round."""

    folder: Path
    flags: list[str]
    environment: dict[str, str]
    chance: random.Random
    proxy: Proxy | None = None
    disk: Path | None = None
    """The small disk of the run folder."""
    data: Path | None = None
    """The folder of TFRecords, if the training reads them."""
    running: list[Program] = field(default_factory=list)
    """The commands of this attempt."""
    notes: list[str] = field(default_factory=list)

    def processes(self) -> list[int]:
        """All processes of this attempt."""
        return sorted({pid for each in self.running for pid in each.processes()})


Fault = Callable[[Scene, float], None]
"""(scene, seconds that it lasts): what happens. It must put right what it broke."""


def _signal(number: int) -> Fault:
    def send(scene: Scene, seconds: float) -> None:
        if pids := scene.processes():
            pid = scene.chance.choice(pids)
            scene.notes.append(f"{signal.Signals(number).name} to {_command(pid)}")
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    return send


def _stop(scene: Scene, seconds: float) -> None:
    if pids := scene.processes():
        pid = scene.chance.choice(pids)
        scene.notes.append(f"SIGSTOP of {_command(pid)} for {seconds:.0f} s")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words[:5]).decode(errors="replace")[-60:]
    return "a process that has ended"


def _storage(mode: str) -> Fault:
    def fail(scene: Scene, seconds: float) -> None:
        if scene.proxy:
            scene.notes.append(f"storage is {mode} for {seconds:.0f} s")
            scene.proxy.mode = mode
            time.sleep(seconds)
            scene.proxy.mode = "good"

    return fail


def _full_disk(scene: Scene, seconds: float) -> None:
    if not scene.disk:
        return
    scene.notes.append(f"the disk is full for {seconds:.0f} s")
    ballast = scene.disk / "ballast"
    with suppress(OSError), open(ballast, "wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    time.sleep(seconds)
    ballast.unlink(missing_ok=True)


def _vanished_data(scene: Scene, seconds: float) -> None:
    if not scene.data:
        return
    file = scene.chance.choice(sorted(scene.data.glob("*.tfrecord*")))
    scene.notes.append(f"{file.name} is gone for {seconds:.0f} s")
    hidden = file.with_name(f"hidden-{file.name}")
    file.rename(hidden)
    time.sleep(seconds)
    hidden.rename(file)


def _flipped_bit(scene: Scene, seconds: float) -> None:
    if not scene.data:
        return
    file = scene.chance.choice(sorted(scene.data.glob("*.tfrecord*")))
    at = scene.chance.randrange(file.stat().st_size)
    scene.notes.append(f"byte {at} of {file.name} is another for {seconds:.0f} s")
    _flip(file, at)
    time.sleep(seconds)
    _flip(file, at)


def _flip(file: Path, at: int) -> None:
    with open(file, "r+b") as handle:
        handle.seek(at)
        byte = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte[0] ^ 64]))


def _second_command(scene: Scene, seconds: float) -> None:
    """The same command once more: it must be refused, or wait, or find the run finished."""
    scene.notes.append("a second command on the same folder")
    with suppress(subprocess.TimeoutExpired):
        ended = paceline(
            *scene.flags, cwd=scene.folder, environment=scene.environment, timeout_s=100
        )
        assert ended.code in (0, 1, 2, 143), ended
        assert ended.code == 1 or "Traceback" not in ended.err, ended.err


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
    "second command": _second_command,
}


def possible(scene: Scene) -> list[str]:
    """Return the faults that can happen in a scene. Signals are more frequent."""
    names = ["kill", "kill", "terminate", "stop", "stop"]
    if "ray" not in scene.flags and "spark" not in scene.flags:
        names.append("second command")
    if scene.proxy:
        names += ["storage refuses", "storage fails", "storage is slow"] * 2
    if scene.disk:
        names += ["full disk"] * 2
    if scene.data:
        names += ["vanished data", "flipped bit"] * 2
    return names


class Proxy:
    """Stands between the training and S3: good, slow, refusing, or answering 503."""

    FAILURE = (
        b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        b"Content-Length: 39\r\n\r\n<Error><Code>SlowDown</Code></Error>   "
    )

    def __init__(self, port: int) -> None:
        self.mode = "good"
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.mode == "refusing":
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                back.start()
                self._copy(client, server, answer_to=client)
                back.join()

    def _copy(
        self, source: socket.socket, target: socket.socket, answer_to: socket.socket | None = None
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.mode == "refusing":
                    break
                if self.mode == "failing" and answer_to:
                    answer_to.sendall(self.FAILURE)
                    break
                if self.mode == "slow":
                    time.sleep(0.3)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
