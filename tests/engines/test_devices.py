"""What TensorFlow is told about GPUs, without one."""

from __future__ import annotations

import pytest
import tensorflow as tf

from paceline.engines import devices
from paceline.engines.placement import Share
from paceline.engines_more.parameter_server import serve
from paceline.experiment.experiment import Experiment
from paceline.job import Cluster, Job

GPUS = ["GPU 0", "GPU 1", "GPU 2"]
DETERMINISTIC = [("enable_op_determinism",), ("enable_tensor_float_32_execution", False)]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The calls of tf.config, on a machine that seems to have three GPUs."""
    calls: list[tuple[object, ...]] = []

    def record(owner: object, name: str) -> None:
        monkeypatch.setattr(owner, name, lambda *given: calls.append((name, *given)))

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: list(GPUS))
    record(tf.config, "set_visible_devices")
    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        record(tf.config.threading, name)
    for name in ("set_memory_growth", *(call[0] for call in DETERMINISTIC)):
        record(tf.config.experimental, str(name))
    return calls


@pytest.mark.parametrize("used", [(), (1, 2), None])
def test_used_gpus_are_deterministic_and_take_memory_as_they_need_it(
    used: tuple[int, ...] | None, told: list[tuple[object, ...]]
) -> None:
    devices.set_threads_and_memory(3, 4, used)
    visible = GPUS if used is None else [GPUS[number] for number in used]
    assert told == [
        ("set_intra_op_parallelism_threads", 3),
        ("set_inter_op_parallelism_threads", 4),
        ("set_visible_devices", visible, "GPU"),
        *(("set_memory_growth", gpu, True) for gpu in visible),
        *(DETERMINISTIC if visible else []),
    ]


@pytest.mark.parametrize("gpus", [(), (0, 1)])
def test_a_worker_of_parameter_servers_is_told_so_before_it_serves(
    gpus: tuple[int, ...], told: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, config: tf.compat.v1.ConfigProto, **__: object) -> None:
        assert config.gpu_options.visible_device_list == ",".join(map(str, gpus))
        assert config.gpu_options.allow_growth
        raise ConnectionError

    monkeypatch.setattr(serve, "own_share", lambda job: Share(gpus, 2, 1, 2))
    monkeypatch.setattr(serve, "publish_facts", lambda: None)
    monkeypatch.setattr(tf.distribute, "Server", start)
    addresses = ("a:1", "b:1")
    with pytest.raises(ConnectionError):
        serve.serve(Job(Experiment(), cluster=Cluster(addresses, 1, "worker", ("c:1",))))
    assert told == (DETERMINISTIC if gpus else [])
