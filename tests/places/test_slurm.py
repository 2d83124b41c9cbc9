"""The addresses of a job step from Slurm's variables. No Slurm is needed."""

from pathlib import Path

import pytest

from helpers import paceline
from paceline.errors import UserError
from paceline.places import slurm


def step(**changes: str) -> dict[str, str]:
    """The variables of the second of three tasks on two nodes."""
    return {
        "SLURM_JOB_ID": "42",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
    } | changes


@pytest.fixture
def scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's own command, for the nodes n1 at 10.0.0.1 and n2 at 10.0.0.2."""
    answers = {
        "hostnames": "n1\nn2\n",
        "node": "NodeName=n1 Arch=x NodeAddr=10.0.0.1 Port=1\nNodeName=n2 NodeAddr=10.0.0.2 X=1\n",
    }
    monkeypatch.setattr(slurm, "_show", lambda what, nodes, *options: answers[what])


@pytest.mark.parametrize(
    ("text", "counts"), [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2])]
)
def test_the_short_form_of_tasks_per_node(text: str, counts: list[int]) -> None:
    assert slurm.tasks_per_node(text) == counts


@pytest.mark.usefixtures("scontrol")
def test_every_task_has_the_address_of_its_node_and_a_port_of_its_own() -> None:
    first = 10_000 + 42 * 7 * 22
    addresses = [f"10.0.0.1:{first}", f"10.0.0.1:{first + 1}", f"10.0.0.2:{first}"]
    assert slurm.task_addresses(step()) == addresses
    in_turn = slurm.task_addresses(step(SLURM_DISTRIBUTION="cyclic"))
    assert [each.split(":")[0][-1] for each in in_turn] == ["1", "2", "1"]


@pytest.mark.parametrize(
    "changes", [{"SLURM_PROCID": "0"}, {"SLURM_NODEID": "1"}, {"SLURM_PROCID": "3"}]
)
def test_a_task_with_the_number_of_another_is_one_line(changes: dict[str, str]) -> None:
    slurm.check_identity(step())
    slurm.check_identity(step(SLURM_DISTRIBUTION="cyclic", SLURM_PROCID="2"))
    with pytest.raises(UserError, match="are those of a different task"):
        slurm.check_identity(step(**changes))


@pytest.mark.usefixtures("scontrol")
def test_steps_of_a_job_and_neighboring_jobs_have_other_ports() -> None:
    environments = [
        step(SLURM_JOB_ID=job, SLURM_STEP_ID=number)
        for job in ("42", "43")
        for number in ("0", "1", "6")
    ]
    ports = [slurm.task_addresses(each)[0].split(":")[1] for each in environments]
    assert len(set(ports)) == len(ports)


def test_outside_an_allocation_is_one_line(tmp_path: Path) -> None:
    ended = paceline("train", "smoke", "--on", "slurm", cwd=tmp_path)
    assert ended.code == 2
    assert "srun -n N paceline train" in ended.err
    assert len(ended.err.splitlines()) == 1
