"""Makes workers fail at one moment, or look like another kind of machine.

Python imports this by itself if its folder is on PYTHONPATH. FAULT is "worker phase kind", or
several with commas between them. Each happens once, noted by a file in FAULT_FOLDER ("failed", or
"failed-1" for the second ...), or every time with FAULT_AGAIN. Nothing in Paceline knows of it.
"""

import os
import signal
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

IN_A_ROUND = ("before-exchange", "in-update")


def fail(kind: str, note: str) -> None:
    folder = Path(os.environ["FAULT_FOLDER"])
    if (folder / note).exists() and "FAULT_AGAIN" not in os.environ:
        return
    (folder / f"failing-{own_index}").write_text(f"{time.time()} {os.getpid()}")
    (folder / f"failing-{own_index}").rename(folder / note)
    if kind == "exception":
        raise RuntimeError("something in this worker broke")
    os.kill(os.getpid(), {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}[kind])


def break_in_the_loop(phase: str, kind: str, note: str, is_victim: bool) -> None:
    """Steps of the recipe smoke: 10 lies within an epoch, 16 is evaluated, 12 is saved."""
    from paceline import loop
    from paceline.run_folder import checkpoints as checkpoint

    saving, train = Path(os.environ["FAULT_FOLDER"], "saving"), loop.train

    def train_with_fault(engine, plan, actions, first_step, *more):
        advance, evaluate = engine.advance, engine.evaluate

        def advancing(start, stop):
            if is_victim and phase == "mid-epoch" and start >= 9:
                fail(kind, note)
            if is_victim and phase == "save" and start >= 12:
                while not saving.exists():
                    time.sleep(0.01)
                fail(kind, note)
            return advance(start, stop)

        def evaluating(final):
            if is_victim and phase == "evaluation" and first_step < 16 <= engine.state().step:
                fail(kind, note)
            return evaluate(final)

        engine.advance, engine.evaluate = advancing, evaluating
        return train(engine, plan, actions, first_step, *more)

    loop.train = train_with_fault
    if phase != "save":
        return
    replacing = checkpoint.replacing

    @contextmanager
    def slowly(path):
        """The chief is in the middle of writing the checkpoint of step 12."""
        with replacing(path) as file:
            if "00000012" in path.name:
                saving.touch()
                if own_index == 0 and is_victim:
                    fail(kind, note)
                time.sleep(1.0)
            yield file

    checkpoint.replacing = slowly


def around_the_import(before=lambda: None, after=lambda: None) -> None:
    """Call functions before TensorFlow is imported, or after it and before the engine is."""
    from paceline.engines import devices

    import_tensorflow, patches = devices.import_tensorflow, [after]

    def importing(job):
        before()
        import_tensorflow(job)
        while patches:  # it is called again before the first device is used
            patches.pop()()

    devices.import_tensorflow = importing


def in_the_graph(act) -> None:
    """Let `act(step)` insert operations into each round, before its other parts."""
    from paceline.engines.collective import CollectiveEngine

    train_round = CollectiveEngine._train_round

    def training_round(self, first, *arguments):
        act(first)
        return train_round(self, first, *arguments)

    CollectiveEngine._train_round = training_round


def break_in_a_round(phase: str, kind: str, note: str) -> None:
    """Within step 10 of the recipe smoke, which is inside a block that begins with step 8."""
    import tensorflow as tf

    from paceline.engines import memory
    from paceline.engines.collective import CollectiveEngine

    now = {}

    def trip(step, _):
        if step == 10:
            fail(kind, note)
        return step

    def before_the_sum(self, results, **arguments):
        if now:
            wire = tf.numpy_function(trip, [now["step"], results[0][0]], tf.int64)
            with tf.control_dependencies([wire]):
                results = [tf.identity(each) for each in results]
        return add(self, results, **arguments)

    def write_some(vectors, new):
        (first, variable), *rest = vectors.items()
        written = [variable.assign(new[first], read_value=False)]
        with tf.control_dependencies(written):
            wire = tf.numpy_function(trip, [now["step"], new[first][0]], tf.int64)
        with tf.control_dependencies([wire]):
            return written + [each.assign(new[name], read_value=False) for name, each in rest]

    in_the_graph(lambda step: now.update(step=step))
    add = CollectiveEngine._sum
    if phase == "before-exchange":
        CollectiveEngine._sum = before_the_sum
    else:
        memory.write_all = write_some


def flip_a_bit(replica: int, wrong_step: int = 10) -> None:
    """Give one output of a replica a wrong bit in one step, counted from 1."""
    import tensorflow as tf

    from paceline.maths import replica as module
    from paceline.maths.template import Template

    op_key, call, now = module.op_key, Template.call, []

    def note(name, seed, step, own):
        now[:] = [(step == wrong_step - 1) & (own == replica)]
        return op_key(name, seed, step, own)

    def call_and_flip(self, *arguments, **settings):
        outputs, *more = call(self, *arguments, **settings)
        if not now:
            return outputs, *more
        bits = tf.bitcast(outputs, tf.int32)
        one = tf.scatter_nd([[0, 0]], [1 << 22], tf.shape(outputs))
        flipped = tf.bitcast(tf.bitwise.bitwise_xor(bits, one), tf.float32)
        wrong = tf.where(now.pop(), flipped - outputs, 0.0)
        return outputs + tf.stop_gradient(wrong), *more

    module.op_key, Template.call = note, call_and_flip


def count_steps(notes: Path) -> None:
    """Note every round that this worker computes."""
    import tensorflow as tf

    def note(step):
        with open(notes, "a") as file:
            print(step, file=file)
        return step

    in_the_graph(lambda step: tf.numpy_function(note, [step], tf.int64))


def on_start() -> None:
    global own_index
    from paceline.job import Job

    from_json = Job.from_json

    def learn(values):
        global own_index
        job = from_json(values)
        own_index = job.cluster.index
        if pretended := os.environ.get("PRETENDED"):
            pretend((str(own_index), f"{job.cluster.role}-{own_index}"), *pretended.split())
        for number, fault in enumerate(filter(None, os.environ.get("FAULT", "").split(","))):
            worker, phase, kind = fault.split()
            note = f"failed-{number}" if number else "failed"
            is_victim = job.cluster.role == "worker" and own_index == int(worker)
            if phase in IN_A_ROUND and is_victim:
                around_the_import(after=partial(break_in_a_round, phase, kind, note))
            elif phase == "start" and is_victim:
                around_the_import(before=partial(fail, kind, note))
            elif phase == "flip" and is_victim:
                around_the_import(after=partial(flip_a_bit, int(kind)))
            elif phase not in (*IN_A_ROUND, "start", "flip"):
                break_in_the_loop(phase, kind, note, is_victim)
        if folder := os.environ.get("COUNT_FOLDER"):
            around_the_import(after=partial(count_steps, Path(folder, f"computed-{own_index}")))
        if logical := os.environ.get("LOGICAL_DEVICES"):
            divide_the_cpu(int(logical))
        return job

    Job.from_json = staticmethod(learn)


def pretend(own: tuple[str, str], worker: str, what: str, value: str) -> None:
    """A library of another version, no kernels, or a CPU without instructions that begin with
    `value`, in one worker: its index or name."""
    if worker not in own:
        return
    if what == "cpu":
        from paceline.kernels import library

        flags = frozenset(each for each in library.cpu_flags() if not each.startswith(value))
        library.cpu_flags = lambda: flags
        return
    if what == "environment":
        os.environ[value] = "1"
        return
    from importlib import metadata

    version = metadata.version
    metadata.version = lambda package: value if package == what else version(package)


def divide_the_cpu(count: int) -> None:
    """Give each worker several logical devices; the strategy uses them like so many GPUs."""
    from paceline.engines import devices

    def build(job):
        devices.configure(job)
        import tensorflow as tf
        from tensorflow.python.distribute.collective_all_reduce_strategy import (
            CollectiveAllReduceExtended,
        )

        from paceline.engines.network import build_multi_worker_strategy

        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
        names = tuple(f"/job:worker/task:{job.cluster.index}/device:CPU:{i}" for i in range(count))
        CollectiveAllReduceExtended._initialize_local_devices = lambda *_: (names, "CPU")
        strategy = build_multi_worker_strategy(job)
        Path(os.environ["DEVICES_FOLDER"], f"devices-{job.cluster.index}").write_text(
            str(strategy.num_replicas_in_sync)
        )
        return strategy

    devices.build_strategy = build


def jump(clock: Path) -> None:
    """Add the seconds in a file to the time of this process, while there is one."""
    real = time.time

    def shifted() -> float:
        try:
            return real() + float(clock.read_text() or 0)
        except FileNotFoundError:
            return real()

    time.time = shifted


if clock := os.environ.get("CLOCK"):
    jump(Path(clock))
own_index = -1
if "paceline.worker_process" in sys.orig_argv:
    on_start()
