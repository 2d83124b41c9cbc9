"""Settings that every test needs before TensorFlow is imported, and before it touches a device."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gcs_server import google  # noqa: F401
from helpers import averaged_run, stopped_run, uninterrupted_run
from s3_server import folder, s3  # noqa: F401

if TYPE_CHECKING:
    import tensorflow as tf

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # as in Paceline's workers: other kernels, other bits
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Compiled code is kept. Without it, each of the many starts of TensorFlow takes twice as long.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A command in the background of a shell ignores Ctrl-C; the programs of tests would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NUM_DEVICES = 8


# Files whose tests start programs, and those that take longest as a whole.
PROGRAMS = (
    *("test_spark", "test_parameter_servers", "test_several_workers", "test_faults"),
    *("test_resume", "test_evaluator", "test_memory_recovery", "test_probe", "test_slurm"),
    *("test_speedrun", "test_passing_faults", "test_coming_from", "test_early_stopping"),
)
LONGEST = ("test_chaos", "test_ray", "test_remote_training", "test_engine")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests for `--dist loadgroup`, and say which of them stay in one process.

    Quick tests come before long ones, and slow ones first, so that no process waits for another at
    the end. Tests that start programs are dealt one by one. Others stay with those of their file,
    which share what they build.
    """

    def place(item: pytest.Item) -> tuple[bool, int]:
        first = [*LONGEST, *PROGRAMS]
        name = item.path.stem
        is_long = item.get_closest_marker("long") is not None
        return is_long, first.index(name) if name in first else len(first)

    for item in items:
        is_long, _ = place(item)
        if item.path.stem not in PROGRAMS and (not is_long or item.path.stem == "test_ray"):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}{'-long' * is_long}"))
    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Divide the CPU into logical devices, with one thread inside an operation.

    TensorFlow allows it once per process, before its first operation. Test modules have been
    imported by now, but no test has run. If none of them imported TensorFlow, none needs devices,
    and the pure tests stay quick. With pytest-xdist this runs in each of its processes.
    """
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * NUM_DEVICES
        )


@pytest.fixture(scope="session")
def mirrored() -> Callable[[int], tf.distribute.Strategy]:
    """Number of logical CPU devices -> a MirroredStrategy over them, one for all tests."""
    import tensorflow as tf

    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert len(names) == NUM_DEVICES, (
        "TensorFlow was used before the tests began: a test module does work when it is imported"
    )

    @cache
    def build(count: int) -> tf.distribute.Strategy:
        # TensorFlow expects one strategy per process; groups of the next would get the same keys.
        tf.distribute.MirroredStrategy._collective_key_base = 1000 * count
        return tf.distribute.MirroredStrategy(names[:count])

    return build


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `train smoke` that nobody stopped."""
    return uninterrupted_run(tmp_path_factory)


@pytest.fixture(scope="session")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `train smoke` with helpers.WEIGHTS, in one process."""
    return averaged_run(tmp_path_factory)


@pytest.fixture(scope="session")
def stopped_at_5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `train smoke` that was stopped after step 5."""
    return stopped_run(tmp_path_factory)


@pytest.fixture(scope="session")
def two_workers_stopped_at_5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `train smoke --workers 2` that was stopped after step 5."""
    return stopped_run(tmp_path_factory, workers=2)


@pytest.fixture
def library_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder and cache for `paceline.train`, whose worker is a thread of this process."""
    from in_process import workers_here

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with workers_here():
        yield tmp_path
