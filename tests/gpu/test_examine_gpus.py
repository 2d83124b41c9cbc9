"""The script for people with GPUs, without one: its commands, and what it calls a problem."""

import re

import pytest
from examine_gpus import Check, Outcome, checks, problems, report

from paceline.cli.parse import parse
from paceline.cli.train import Train


@pytest.mark.slow
def test_every_command_of_the_script_is_one_that_paceline_takes() -> None:
    for gpus in (1, 2, 4):
        seen = [int(found) for c in checks(gpus) for found in re.findall(r"--cuda (\d)", c.flags)]
        assert max(seen) == gpus
    for flags in {re.sub(r" --cuda \d", "", check.flags) for check in checks(4)}:
        recipe, *words = flags.split()
        train = parse(Train, "paceline train", words, default=Train.of_recipe(recipe))
        assert train.place.devices == "gpu"


def test_digests_that_differ_and_commands_that_fail_are_problems() -> None:
    same, other = ({"finished": True, "state_sha256": digest * 8} for digest in ("ab", "cd"))
    one, two = (Check("smoke", what, "") for what in ("one GPU", "2 GPUs"))
    assert not problems([Outcome(one, 0, 1.0, same, ""), Outcome(two, 0, 1.0, same, "")])
    wrong = [Outcome(one, 0, 1.0, same, ""), Outcome(two, 0, 1.0, other, "")]
    assert problems(wrong) == [f"smoke: 2 digests: {'ab' * 8}, {'cd' * 8}"]
    failed = Outcome(two, 1, 1.0, {}, "out of memory")
    assert problems([failed]) == ["2 GPUs: exit code 1: out of memory"]
    assert "| 2 GPUs |" in report([failed], "a machine")
