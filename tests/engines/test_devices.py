"""What TensorFlow is told about GPUs, without one."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from paceline.engines import devices
from paceline.engines.placement import Share
from paceline.engines_more.parameter_server import serve
from paceline.engines_more.parameter_server.ps_engine import gpus_of_workers
from paceline.engines_more.ray_actors import ray_engine
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.job import Cluster, Job, Place
from paceline.kernels import arithmetic
from paceline.maths.signatures import sign

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


PS_CLUSTER = Cluster(("a:1", "b:1", "b:2"), ps=("c:1",))


@pytest.mark.parametrize(
    "job",
    [
        Job(Experiment(replicas=4), Place(on="ray", workers=2)),
        Job(Experiment(replicas=4), Place(on="tf_config", workers=2), cluster=PS_CLUSTER),
    ],
)
def test_a_process_that_only_coordinates_knows_the_gpus_of_its_workers(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees none itself. Its line at the start and its choice of kernels are the workers'."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(devices, "find_spec", lambda name: name == "nvidia")
    monkeypatch.setattr(devices, "gpus_elsewhere", 0)
    assert not devices.own_share(job).gpus
    assert len([*devices.warnings(job)]) == 1
    devices.gpus_elsewhere = 1
    assert str(devices.own_share(job)).startswith("on GPU 0: 2 of the replicas")
    assert not [*devices.warnings(job)]


@pytest.mark.parametrize(
    ("given", "has_cuda", "devices_flag", "gpus"),
    [(1, True, "auto", 1), (2, True, "gpu", 1), (1, False, "auto", 0), (1, True, "cpu", 0)],
)
def test_a_worker_of_ray_computes_on_the_first_gpu_it_gets(
    given: int, has_cuda: bool, devices_flag: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: has_cuda)
    crew = SimpleNamespace(resources={"num_cpus": 1.0, "num_gpus": float(given)})
    monkeypatch.setattr(ray_engine, "connect_to_ray", lambda job: None)
    monkeypatch.setattr(ray_engine, "Crew", lambda job: crew)
    monkeypatch.setattr(devices, "gpus_elsewhere", 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    ray_engine.connect(Job(Experiment(), Place(on="ray", devices=devices_flag)), bool)
    assert devices.gpus_elsewhere == gpus


@pytest.mark.parametrize(
    ("names", "devices_flag", "expected"),
    [
        ((), "auto", []),
        (("worker/task:0/0", "worker/task:1/0"), "auto", ["/gpu:0"]),
        (("worker/task:0/0", "worker/task:0/1", "worker/task:1/0"), "gpu", ["/gpu:0"]),
        (("worker/task:0/0",), "cpu", []),
        (("worker/task:0/0",), "auto", "1 of 2 workers have a GPU"),
        ((), "gpu", "0 of 2 workers have a GPU"),
    ],
)
def test_workers_of_parameter_servers_all_compute_on_gpus_or_none_does(
    names: tuple[str, ...],
    devices_flag: str,
    expected: list[str] | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [tf.config.LogicalDevice("/job:" + ":".join(n.rsplit("/", 1)), "GPU") for n in names]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: found)
    job = Job(Experiment(replicas=4), Place(workers=2, devices=devices_flag), cluster=PS_CLUSTER)
    if isinstance(expected, list):
        assert gpus_of_workers(job) == expected
    else:
        with pytest.raises(UserError, match=expected):
            gpus_of_workers(job)


def test_a_chief_whose_workers_have_gpus_sends_them_what_a_process_with_gpus_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sees no GPU itself, only the devices of its cluster."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["/job:worker/GPU:0"])
    assert not arithmetic.is_fixed()
    assert not sign([tf.ones([3])], tf.constant(0), 2).numpy().any()
