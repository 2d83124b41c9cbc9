"""The Dockerfile: what it promises, and an image of it that is built and run.

No Docker daemon is needed: buildah builds and runs with --isolation chroot, and debootstrap makes
the base under the name that the Dockerfile asks for. PACELINE_TEST_BASE may name a tar of a base.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers import Ended, paceline, program, result_of, wait_until, write_own_code

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
MOST_BYTES = 2.5e9
TOOLS = ("buildah", "podman", "debootstrap")
MISSING = [tool for tool in TOOLS if not shutil.which(tool)]
WHY_NOT = "needs root and " + " ".join(TOOLS) if MISSING or os.geteuid() else ""
FOR_DOWNLOADS = ("/etc/ssl/certs", "/etc/pip.conf")
"""How this machine downloads; mounted while the image is built, so that no layer has it."""


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
    assert json.loads(last["HEALTHCHECK"].partition("CMD ")[2]) == ["paceline", "doctor"]


def test_what_the_dockerfile_copies_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copies = [words.split()[:-1] for name, words in instructions(1) if name == "COPY"]
    copied = {word.rstrip("/") for words in copies for word in words}
    assert copied == {line[1:] for line in ignored if line[0] == "!"}
    assert all((ROOT / each).exists() for each in copied)


# ---- built and run


@dataclass(frozen=True)
class Container:
    """A container of the image, and the environment of the tools with their storage."""

    name: str
    environment: dict[str, str]
    settings: dict[str, Any]

    def run(self, *words: str, folder: Path = ROOT) -> Ended:
        """Run `docker run -v FOLDER:/output IMAGE words`."""
        flags = ["--isolation", "chroot", "-v", f"{folder}:/output", self.name, "--"]
        arguments = [*flags, *self.settings["Entrypoint"], *words]
        command = ("buildah", "run")
        return paceline(
            *arguments, cwd=ROOT, environment=self.environment, command=command, timeout_s=300
        )


def tool(environment: dict[str, str], *command: str, cwd: Path = ROOT) -> str:
    """Return what a command prints; its errors are in the failure."""
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, cwd=cwd
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.strip()


def base_tar(folder: Path) -> Path:
    """A tar of Debian's smallest system with Python, from the mirror of this machine."""
    if given := os.environ.get("PACELINE_TEST_BASE"):
        return Path(given)
    names = dict(re.findall(r"(\w+)=\"?([^\"\n]*)", Path("/etc/os-release").read_text()))
    mirrors = tool({}, "apt-get", "indextargets", "--format", "$(REPO_URI)").splitlines()
    small = ("debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates")
    tool({}, *small, names["VERSION_CODENAME"], str(folder / "system"), mirrors[0])
    tool({}, "tar", "--create", "--file", "base.tar", "--directory", "system", ".", cwd=folder)
    return folder / "base.tar"


@contextmanager
def built_container(folder: Path) -> Iterator[Container]:
    """Build the image by `make image` in a storage of its own, which is removed at the end."""
    storage = folder / "storage.conf"
    graph, run = folder / "graph", folder / "run"
    storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{graph}"\nrunroot = "{run}"\n')
    environment = {"CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot"}
    (name,) = re.findall(r"ARG BASE=(\S+)", DOCKERFILE)
    mounts = [f"--volume {path}:{path}:ro" for path in FOR_DOWNLOADS if Path(path).exists()]
    try:
        tool(environment, "podman", "import", str(base_tar(folder)), name)
        tool(environment, "make", "image", f"BUILD_FLAGS=--pull-never {' '.join(mounts)}")
        tool(environment, "buildah", "from", "--pull-never", "--name", "one", "paceline")
        inspected = tool(environment, "buildah", "inspect", "--type", "image", "paceline")
        yield Container("one", environment, json.loads(inspected)["Docker"]["config"])
    finally:
        subprocess.run(["buildah", "rm", "--all"], env=os.environ | environment)
        shutil.rmtree(graph, ignore_errors=True)


@pytest.mark.long
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "it can")
def test_the_image_trains_with_the_bits_of_outside(uninterrupted: Path, tmp_path: Path) -> None:
    with built_container(tmp_path) as container:
        assert container.settings["User"] == "paceline"
        assert container.settings["Healthcheck"]["Test"] == ["CMD", "paceline", "doctor"]
        root = tool(container.environment, "buildah", "mount", container.name)
        size = int(tool(container.environment, "du", "--summarize", "--bytes", root).split()[0])
        assert size < MOST_BYTES
        assert "paceline train" in container.run("--help").out
        healthy = container.run("doctor")
        assert healthy.code == 0, healthy
        output = tmp_path / "output"
        output.mkdir()
        os.chown(output, 1000, 1000)
        ended = container.run("train", "smoke", "--run-dir", "/output/run", folder=output)
    assert ended.code == 0, ended
    assert (output / "run" / "result.json").stat().st_uid == 1000
    assert result_of(output / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


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
