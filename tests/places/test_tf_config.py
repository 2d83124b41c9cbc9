"""TF_CONFIG of every kind that platforms write, and of kinds that nobody should."""

import json
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.job import Cluster, Job, Run
from paceline.places.tf_config import open_place, parse_tf_config
from paceline.run_folder.folder import default_path

CHIEF, ONE, TWO = "a:1", "b:2", "[::1]:3"


def parse(cluster: Any, role: Any = "worker", index: Any = 0, **more: Any) -> tuple[Cluster, str]:
    return parse_tf_config(
        json.dumps({"cluster": cluster, "task": {"type": role, "index": index}, **more})
    )


@pytest.mark.parametrize(
    ("cluster", "role", "index", "addresses", "own"),
    [
        ({"worker": [ONE, TWO]}, "worker", 0, (ONE, TWO), 0),
        ({"worker": [ONE, TWO]}, "worker", "1", (ONE, TWO), 1),
        ({"chief": [CHIEF], "worker": [ONE]}, "chief", 0, (CHIEF, ONE), 0),
        ({"chief": [CHIEF], "worker": [ONE, TWO]}, "worker", 1, (CHIEF, ONE, TWO), 2),
        ({"master": [CHIEF], "worker": [ONE]}, "worker", 0, (CHIEF, ONE), 1),
        ({"master": [CHIEF]}, "master", 0, (CHIEF,), 0),
        ({"worker": [ONE], "ps": []}, "worker", 0, (ONE,), 0),
        ({"chief": [CHIEF], "worker": [ONE], "evaluator": [TWO]}, "worker", 0, (CHIEF, ONE), 1),
    ],
)
def test_roles_and_order(
    cluster: Any, role: str, index: Any, addresses: tuple[str, ...], own: int
) -> None:
    parsed, run_dir = parse(cluster, role, index)
    assert (parsed.addresses, parsed.index, parsed.role, run_dir) == (addresses, own, "worker", "")
    assert parsed.is_chief == (own == 0)


def test_an_evaluator_is_no_worker_whether_listed_or_not() -> None:
    for cluster in ({"worker": [ONE]}, {"worker": [ONE], "evaluator": [TWO]}):
        parsed, _ = parse(cluster, "evaluator")
        assert (parsed.role, parsed.num_workers, parsed.is_chief) == ("evaluator", 1, False)


@pytest.mark.parametrize(("chief", "computing"), [("chief", 2), ("master", 3)])
@pytest.mark.parametrize(
    ("role", "index", "expected"),
    [
        # name, address, serves, is chief
        ("chief", 0, ("chief", CHIEF, False, True)),
        ("worker", 0, ("worker 0", ONE, True, False)),
        ("worker", 1, ("worker 1", TWO, True, False)),
        ("ps", 0, ("ps 0", "p:4", True, False)),
    ],
)
def test_beside_parameter_servers_a_master_computes_and_a_chief_does_not(
    chief: str, computing: int, role: str, index: int, expected: tuple[str, str, bool, bool]
) -> None:
    cluster = {chief: [CHIEF], "worker": [ONE, TWO], "ps": ["p:4"]}
    parsed, _ = parse(cluster, chief if role == "chief" else role, index)
    assert (parsed.name, parsed.address, parsed.serves, parsed.is_chief) == expected
    assert parsed.num_workers == computing
    assert parsed.tasks == {"chief": [CHIEF], "worker": [ONE, TWO], "ps": ["p:4"]}


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("master", ("worker 0", CHIEF, False)),
        ("worker", ("worker 1", ONE, False)),
        ("ps", ("ps 0", "p:4", True)),
    ],
)
def test_ignored_ps_tasks_are_idle_and_the_others_train(
    role: str, expected: tuple[str, str, bool]
) -> None:
    cluster = {"master": [CHIEF], "worker": [ONE], "ps": ["p:4"]}
    task = {"type": role, "index": 0}
    parsed, _ = parse_tf_config(json.dumps({"cluster": cluster, "task": task}), ignore_ps=True)
    assert (parsed.name, parsed.address, parsed.serves) == expected
    assert (parsed.num_workers, parsed.ps, parsed.idle) == (2, (), ("p:4",))


def test_a_run_folder_that_contradicts_model_dir_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, experiment = "runs/own", Experiment()
    config = {"cluster": {"worker": [ONE]}, "task": {"type": "worker"}, "model_dir": "/shared"}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    def opened(run_dir: str) -> str:
        with open_place(Job(experiment, run=Run(run_dir=run_dir)), print) as place:
            return place.job.run.run_dir

    assert opened(default_path("smoke", experiment)) == opened("/shared") == "/shared"
    with pytest.raises(UserError, match="--run-dir is runs/own, but TF_CONFIG has model_dir /sh"):
        opened(own)


def test_environment_is_ignored_and_model_dir_names_the_run_folder() -> None:
    _, run_dir = parse({"worker": [ONE]}, environment="cloud", model_dir="/shared/run")
    assert run_dir == "/shared/run"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "has no 'cluster'"),
        ('{"cluster": {"worker": ["a:1"]}}', "has no 'task'"),
        ('{"cluster": [], "task": {}}', "has no 'cluster'"),
    ],
)
def test_what_is_no_tf_config_at_all(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_tf_config(text)


@pytest.mark.parametrize(
    ("cluster", "role", "index", "message"),
    [
        ({"worker": []}, "worker", 0, "no chief and no worker"),
        ({"worker": ["a"]}, "worker", 0, "'a'; it must be host:port"),
        ({"worker": ["a:0"]}, "worker", 0, "must be host:port"),
        ({"worker": [1]}, "worker", 0, "must be host:port"),
        ({"worker": "a:1"}, "worker", 0, "must be a list"),
        ({"worker": [ONE, ONE]}, "worker", 0, "names an address twice"),
        ({"worker": [ONE]}, "worker", 1, "task is worker 1, but its cluster has 1"),
        ({"worker": [ONE]}, "chief", 0, "task is chief 0, but its cluster has 0"),
        ({"worker": [ONE]}, "worker", -1, "task index is -1"),
        ({"worker": [ONE]}, "worker", True, "task index is True"),
        ({"worker": [ONE]}, "boss", 0, "task type is 'boss'"),
        ({"workers": [ONE]}, "worker", 0, "unknown role 'workers'"),
        ({"chief": [CHIEF], "master": [ONE]}, "chief", 0, "both chief and master"),
        ({"chief": [CHIEF, ONE]}, "chief", 0, "2 chiefs"),
        ({"worker": [ONE]}, "evaluator", 1, "a run has one evaluator"),
        ({"worker": ["http://a:1"]}, "worker", 0, "must be host:port"),
        ({"worker": ["::1:3"]}, "worker", 0, "must be host:port"),
        ({"worker": [ONE]}, "worker", "one", "task index is 'one'"),
        ({"worker": [ONE]}, "worker", "٣", "task index is"),
        ({"worker": [ONE]}, "worker", "1" * 5000, "task index is"),
        ({"worker": [ONE]}, "worker", 0.5, "task index is 0.5"),
        ({"worker": [ONE]}, ["worker"], 0, "task type is"),
        ({"evaluator": [ONE]}, "evaluator", 0, "no chief and no worker"),
        ({"worker": [ONE], "ps": [TWO]}, "worker", 0, "ps tasks but no chief"),
        ({"chief": [CHIEF], "ps": [TWO]}, "chief", 0, "ps tasks but no worker"),
        ({"chief": [CHIEF], "worker": [ONE], "ps": [TWO]}, "ps", 1, "task is ps 1, but its"),
    ],
)
def test_a_malformed_cluster_is_one_clear_line(
    cluster: Any, role: Any, index: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse(cluster, role, index)
    assert "\n" not in str(error.value)
