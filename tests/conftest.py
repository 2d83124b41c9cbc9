"""Settings that every test needs before TensorFlow is imported, and before it touches a device."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gcs_server import google  # noqa: F401
from helpers import WEIGHTS, once_per_session, paceline
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
FIRST = ("places/test_spark", "places", "engines_more", "faults", "claims", "run_folder", "engines")
"""What takes longest, by the start of its path."""
ONE_BY_ONE = ("places", "engines_more", "faults", "claims")
"""Folders whose tests start programs, so that any process may run any of them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with what takes longest; keep most tests with those of their file, for its fixtures."""

    def rank(item: pytest.Item) -> tuple[bool, int]:
        path = str(item.path.relative_to(Path(__file__).parent))
        is_long = item.get_closest_marker("long") is not None
        return is_long, next((n for n, each in enumerate(FIRST) if path.startswith(each)), 99)

    items.sort(key=rank)
    for item in items:
        name = item.path.stem
        if item.path.parent.name not in ONE_BY_ONE or name in ("test_ray", "test_slurm_cluster"):
            is_long, _ = rank(item)
            item.add_marker(pytest.mark.xdist_group(f"{name}{'-long' * is_long}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Divide the CPU into logical devices, with one thread inside an operation.

    TensorFlow allows it once per process, before its first operation. If no test module has
    imported TensorFlow, none needs devices, and the pure tests stay quick.
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


def smoke_run(name: str, *flags: str) -> Any:
    """A fixture: the folder of a `train smoke` with these flags, made once for all processes."""

    @pytest.fixture(scope="session", name=name)
    def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
        def make(where: Path) -> None:
            assert paceline("train", "smoke", "--run-dir", "run", *flags, cwd=where).code == 0

        return once_per_session(tmp_path_factory, name, make) / "run"

    return run


uninterrupted = smoke_run("uninterrupted")
averaged = smoke_run("averaged", *WEIGHTS)
stopped_at_5 = smoke_run("stopped_at_5", "--stop-at", "5")  # in its first epoch, saved at 4 and 5


@pytest.fixture
def library_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder and cache for `paceline.train`, whose worker is a thread of this process."""
    from in_process import workers_here

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with workers_here():
        yield tmp_path
