"""The Dockerfile: what it promises, and a first process that gets signals as in a container."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from helpers import paceline, program, result_of, wait_until, write_own_code

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def instructions(stage: int) -> list[list[str]]:
    """The instructions of a stage of the Dockerfile, continued lines joined."""
    lines = re.sub(r"\\\n", " ", DOCKERFILE).splitlines()
    stages: list[list[list[str]]] = [[]]
    for line in lines:
        if line.startswith("FROM"):
            stages.append([])
        if line and not line.startswith("#"):
            stages[-1].append(line.split(maxsplit=1))
    return stages[stage]


def test_the_image_has_two_stages_of_one_base_and_pinned_versions() -> None:
    assert instructions(0) == [["ARG", "BASE=python:3.11-slim"]]
    assert instructions(1)[0] == ["FROM", "${BASE} AS build"]
    copy = ["COPY", "--from=build /opt/paceline /opt/paceline"]
    assert instructions(2)[:2] == [["FROM", "${BASE}"], copy]
    assert not any("apt-get" in words for _, words in instructions(2)), "no compiler"
    installs = [words for _, words in instructions(1) if "pip install" in words]
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in words for words in installs)


def test_the_image_has_a_user_of_its_own_a_health_check_and_paceline_as_its_command() -> None:
    last = dict(instructions(2))
    assert last["USER"] == "paceline"
    assert json.loads(last["ENTRYPOINT"]) == ["paceline"]
    assert json.loads(last["HEALTHCHECK"].partition("CMD ")[2]) == ["paceline", "--version"]


def test_what_the_dockerfile_copies_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copies = [words.split()[:-1] for name, words in instructions(1) if name == "COPY"]
    copied = {word.rstrip("/") for words in copies for word in words}
    assert copied == {line[1:] for line in ignored if line[0] == "!"}
    assert all((ROOT / each).exists() for each in copied)


@pytest.mark.long
@pytest.mark.skipif(bool(os.geteuid()), reason="a namespace of processes needs root")
def test_the_first_process_of_a_namespace_saves_at_a_sigterm_and_continues(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """As in a container: the kernel ignores signals that the first process does not handle."""
    own = write_own_code(tmp_path)
    words = ("train", "smoke", "--run-dir", "run")
    inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    waiting = ("--actions", f"{own}:wait_for_a_signal")
    with program(*words, *waiting, cwd=tmp_path, inside=inside) as running:
        wait_until((tmp_path / "reached").exists)
        (first,) = (pid for pid in running.find("wait_for_a_signal") if pid != running.pid)
        os.kill(first, signal.SIGTERM)
        assert running.wait().code == 143
    assert paceline(*words, cwd=tmp_path).code == 0
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
