"""Who uses which GPUs, replicas and threads: tables, without TensorFlow and without GPUs."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.cli.parse import parse
from paceline.cli.train import Train
from paceline.engines import devices
from paceline.engines.placement import Share, assign, own_share
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.names import apply_settings
from paceline.job import Cluster, Job, Place, PlaceName, Run

TWO = ("a:1", "a:2")
FOUR = (*TWO, "b:1", "b:2")


@pytest.mark.parametrize(
    ("hosts", "gpus", "cores", "replicas", "shares"),
    [
        # host of each worker; GPUs and cores of a host; replicas; of each worker: GPUs, replicas,
        # replicas side by side, threads
        ("a", 0, 2, 2, [((), 2, 2, 2)]),
        ("aa", 0, 2, 2, [((), 1, 1, 2)] * 2),
        ("aa", 0, 16, 3, [((), 1, 2, 2), ((), 2, 2, 2)]),
        ("a", 1, 8, 1, [((0,), 1, 1, 8)]),
        ("a", 1, 8, 4, [((0,), 4, 1, 8)]),
        ("a", 4, 16, 4, [((0, 1, 2, 3), 4, 1, 16)]),
        ("a", 4, 16, 2, [((0, 1), 2, 1, 16)]),
        ("a", 4, 16, 6, [((0, 1, 2, 3), 6, 1, 16)]),
        ("aa", 4, 16, 4, [((0, 1), 2, 1, 8), ((2, 3), 2, 1, 8)]),
        ("aaaa", 4, 16, 4, [((n,), 1, 1, 4) for n in range(4)]),
        ("aaa", 4, 16, 6, [((n,), 2, 1, 5) for n in range(3)]),
        ("ab", 4, 16, 8, [((0, 1, 2, 3), 4, 1, 16)] * 2),
        ("abab", 4, 16, 8, [((0, 1), 2, 1, 8)] * 2 + [((2, 3), 2, 1, 8)] * 2),
    ],
)
def test_each_worker_gets_its_part_of_its_host(
    hosts: str, gpus: int, cores: int, replicas: int, shares: list[tuple[Any, ...]]
) -> None:
    found = assign(hosts, dict.fromkeys(hosts, gpus), dict.fromkeys(hosts, cores), replicas)
    assert [(s.gpus, s.replicas, s.side_by_side, s.threads) for s in found] == shares
    assert sum(each.replicas for each in found) == replicas


def test_hosts_with_different_gpus_use_the_same_number() -> None:
    shares = assign("ab", {"a": 4, "b": 2}, {"a": 8, "b": 8}, 8)
    assert [each.gpus for each in shares] == [(0, 1), (0, 1)]
    assert shares[0].unused == 2


def test_fewer_gpus_than_workers_of_a_host_are_refused() -> None:
    with pytest.raises(UserError, match="4 workers of one host see 2 GPUs; start 2 there"):
        assign("aaaa", {"a": 2}, {"a": 8}, 8)


def share(on: PlaceName, cluster: Cluster, workers: int, gpus: int, **environment: str) -> Share:
    job = Job(Experiment(replicas=8), Place(on=on, workers=workers), cluster=cluster)
    return own_share(job, gpus, 16, environment)


@pytest.mark.parametrize(
    ("on", "cluster", "workers", "seen", "environment", "gpus"),
    [
        ("local", Cluster(TWO, 1), 2, 4, {}, (2, 3)),
        ("local", Cluster(TWO, 1), 2, 4, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, (2, 3)),
        ("tf_config", Cluster(FOUR, 3), 4, 4, {}, (2, 3)),
        ("tf_config", Cluster(FOUR, 3), 4, 2, {"CUDA_VISIBLE_DEVICES": "2,3"}, (0, 1)),
        ("slurm", Cluster(FOUR, 3), 4, 4, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, (2, 3)),
        ("slurm", Cluster(FOUR, 3), 4, 2, {"SLURM_GPUS_PER_TASK": "2"}, (0, 1)),
        ("slurm", Cluster(FOUR, 3), 4, 1, {"SLURM_TRES_PER_TASK": "gres/gpu=1"}, (0,)),
        ("ray", Cluster(), 4, 1, {}, (0,)),
        # the chief of parameter servers computes nothing, or has its part as a master
        ("local", Cluster(("a:0", *TWO), 2, ps=("a:9",)), 2, 4, {}, (2, 3)),
        ("tf_config", Cluster(("a:0", "b:1"), 1, ps=("a:9",)), 1, 4, {}, (0, 1, 2, 3)),
        ("local", Cluster(TWO, 1, ps=("a:9",), chief_trains=True), 2, 4, {}, (2, 3)),
    ],
)
def test_a_platform_decides_whether_tasks_of_a_host_share_its_gpus(
    on: PlaceName,
    cluster: Cluster,
    workers: int,
    seen: int,
    environment: dict[str, str],
    gpus: tuple[int, ...],
) -> None:
    assert share(on, cluster, workers, seen, **environment).gpus == gpus


def warnings(job: Job, gpus: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(devices, "own_share", lambda job: own_share(job, gpus, 16, {}))
    return [*devices.warnings(job)]


def test_idle_gpus_are_named_with_the_flag_that_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(Experiment(replicas=2), Place(workers=2))
    (idle,) = warnings(job, 8, monkeypatch)
    assert idle.startswith("2 replicas use 2 of 8 GPUs; --gpus 8 uses all of them")
    assert not warnings(job, 2, monkeypatch)
    assert not warnings(job, 0, monkeypatch)


def test_an_installation_for_gpus_that_sees_none_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_spec", lambda name: name == "nvidia")
    (warning,) = warnings(Job(Experiment()), 0, monkeypatch)
    assert "TensorFlow sees no GPU" in warning
    assert not warnings(Job(Experiment()), 1, monkeypatch)
    assert not warnings(Job(Experiment(), Place(devices="cpu")), 0, monkeypatch)


def test_the_line_at_the_start_names_the_gpus_and_what_they_compute() -> None:
    found = share("local", Cluster(TWO, 1), 2, 4)
    assert str(found) == "on GPU 2, 3: 4 of the replicas, 8 threads for data"
    assert str(replace(found, gpus=())) == "1 side by side"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # replicas, devices, workers
        ("--gpus 4", (4, "gpu", 1)),
        ("--gpus=0", (1, "cpu", 1)),
        ("--gpus 2 --devices auto", (2, "auto", 1)),
        ("--gpus 2 --on ray", (2, "gpu", 2)),
        ("--gpus 2 --workers 2 --on ray", (2, "gpu", 2)),
    ],
)
def test_gpus_is_short_for_a_replica_on_each(flags: str, expected: tuple[int, str, int]) -> None:
    train = parse(Train, "paceline train", flags.split(), default=Train.of_recipe("cifar10-fast"))
    assert (train.experiment.replicas, train.place.devices, train.place.workers) == expected
    words = flags.replace("=", " ").replace("--", "").split()
    settings = {
        name: int(v) if v.isdigit() else v for name, v in zip(words[::2], words[1::2], strict=True)
    }
    experiment, place, _ = apply_settings(settings, Experiment(), Place(), Run())
    assert (experiment.replicas, place.devices, place.workers) == expected


def test_more_gpus_than_workers_on_ray_are_refused() -> None:
    flags = ["--gpus", "8", "--workers", "4", "--on", "ray"]
    with pytest.raises(UserError, match="on Ray each worker has one; leave out --workers"):
        parse(Train, "paceline train", flags)
