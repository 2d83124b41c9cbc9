"""Settings that every test needs before TensorFlow is imported, and before it touches a device."""

from __future__ import annotations

import os
import sys

import pytest

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # as in Paceline's workers: other kernels, other bits
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

NUM_DEVICES = 8


def pytest_collection_finish(session: pytest.Session) -> None:
    """Divide the CPU into logical devices, with one thread inside an operation: TensorFlow allows it once per process, before its
    first operation. Test modules have been imported by now, but no test has run. Where none of them imported TensorFlow, none
    needs devices, and the pure tests stay quick. With pytest-xdist this runs in each of its processes."""
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * NUM_DEVICES)


@pytest.fixture(scope="session")
def devices() -> list[str]:
    """Names of eight logical CPU devices, for `tf.distribute.MirroredStrategy`."""
    import tensorflow as tf

    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert len(names) == NUM_DEVICES, "TensorFlow was used before the tests began: a test module does work when it is imported"
    return names
