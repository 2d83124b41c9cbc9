"""Makes one worker fail at one moment, or look like another kind of machine.

Python imports this by itself if its folder is on PYTHONPATH. FAULT is "worker phase kind". It
happens once, noted by a file in FAULT_FOLDER, or every time with FAULT_AGAIN. Nothing in Paceline
knows of it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def fail(kind: str) -> None:
    folder = Path(os.environ["FAULT_FOLDER"])
    if (folder / "failed").exists() and "FAULT_AGAIN" not in os.environ:
        return
    (folder / "failing").write_text(f"{time.time()} {os.getpid()}")
    (folder / "failing").rename(folder / "failed")
    if kind == "exception":
        raise RuntimeError("something in this worker broke")
    os.kill(os.getpid(), {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}[kind])


def break_at_the_start(kind: str) -> None:
    """Before TensorFlow is imported, while the others begin to wait."""
    from paceline.worker import devices

    import_tensorflow = devices.import_tensorflow

    def failing(job):
        fail(kind)
        import_tensorflow(job)

    devices.import_tensorflow = failing


def break_in_the_loop(phase: str, kind: str, is_victim: bool) -> None:
    """Steps of the recipe smoke: 10 lies within an epoch, 16 is evaluated, 12 is saved."""
    from paceline.run_folder import checkpoint
    from paceline.worker import loop

    saving, train = Path(os.environ["FAULT_FOLDER"], "saving"), loop.train

    def train_with_fault(engine, plan, actions, first_step=0):
        advance, evaluate = engine.advance, engine.evaluate

        def advancing(start, stop):
            if is_victim and phase == "mid-epoch" and start >= 9:
                fail(kind)
            if is_victim and phase == "save" and start >= 12:
                while not saving.exists():
                    time.sleep(0.01)
                fail(kind)
            return advance(start, stop)

        def evaluating(final):
            if is_victim and phase == "evaluation" and first_step < 16 <= engine.state().step:
                fail(kind)
            return evaluate(final)

        engine.advance, engine.evaluate = advancing, evaluating
        return train(engine, plan, actions, first_step)

    loop.train = train_with_fault
    if phase != "save":
        return
    from contextlib import contextmanager

    replacing = checkpoint.replacing

    @contextmanager
    def slowly(path):
        """The chief is in the middle of writing the checkpoint of step 12."""
        with replacing(path) as file:
            if "00000012" in path.name:
                saving.touch()
                if own_index == 0 and is_victim:
                    fail(kind)
                time.sleep(1.0)
            yield file

    checkpoint.replacing = slowly


def on_start() -> None:
    global own_index
    from paceline.config.job import Job

    from_json = Job.from_json

    def learn(values):
        global own_index
        job = from_json(values)
        own_index = job.cluster.index
        if pretended := os.environ.get("PRETENDED"):
            pretend(own_index, *pretended.split())
        if folder := os.environ.get("WRITES_FOLDER"):
            note_writes(Path(folder, f"writes-{own_index}"))
        if fault := os.environ.get("FAULT"):
            worker, phase, kind = fault.split()
            is_victim = job.cluster.role == "worker" and own_index == int(worker)
            break_at_the_start(kind) if is_victim and phase == "start" else break_in_the_loop(
                phase, kind, is_victim
            )
        if logical := os.environ.get("LOGICAL_DEVICES"):
            divide_the_cpu(int(logical))
        return job

    Job.from_json = staticmethod(learn)


def pretend(own: int, worker: str, what: str, value: str) -> None:
    """A library of another version, or another CPU, in one of the workers."""
    if own != int(worker):
        return
    if what == "cpu":
        from paceline.worker import fingerprint

        assert fingerprint.cpu_features()
        fingerprint.cpu_features = lambda: value
        return
    from importlib import metadata

    version = metadata.version
    metadata.version = lambda package: value if package == what else version(package)


def note_writes(notes: Path) -> None:
    """Every file that this process opens to write, removes or renames, by Python's audit events."""
    handle = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, arguments: tuple) -> None:
        writes = event in ("os.rename", "os.remove", "os.mkdir", "os.truncate")
        if event == "open":
            _, mode, flags = arguments
            writes = bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or any(
                c in (mode or "") for c in "wax+"
            )
        if writes:
            os.write(handle, f"{os.path.abspath(str(arguments[0]))}\n".encode())

    sys.addaudithook(note)


def divide_the_cpu(count: int) -> None:
    """Give each worker several logical devices; the strategy uses them like so many GPUs."""
    from paceline.worker import devices

    build_strategy = devices.build_strategy

    def build(job):
        devices.import_tensorflow(job)
        import tensorflow as tf
        from tensorflow.python.distribute.collective_all_reduce_strategy import (
            CollectiveAllReduceExtended,
        )

        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
        names = tuple(f"/job:worker/task:{job.cluster.index}/device:CPU:{i}" for i in range(count))
        CollectiveAllReduceExtended._initialize_local_devices = lambda *_: (names, "CPU")
        strategy = build_strategy(job)
        Path(os.environ["DEVICES_FOLDER"], f"devices-{job.cluster.index}").write_text(
            str(strategy.num_replicas_in_sync)
        )
        return strategy

    devices.build_strategy = build


own_index = -1
if "paceline.worker" in sys.orig_argv:
    on_start()
