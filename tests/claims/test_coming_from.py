"""docs/coming-from.md: every command that it tells people to type now is run, as it stands there,
with fewer steps and less data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from benchmarks.slurm_cluster import WHY_NOT, slurm_cluster

from helpers import OWN_CODE, free_port, once_per_session, paceline, program, result_of, wait_until
from in_process import paceline_here
from older_commands import COMMANDS_NOW, ROOT, TEXT, smaller, write_pictures
from paceline.cli.commands import split_command


def reason_to_skip(command: str) -> str:
    """What the command needs that is not here."""
    needs = {
        "--on ray": "paceline.places.ray",
        "--on spark": "paceline.places.spark.place",
        "--ps": "paceline.engines_more.parameter_server.ps_engine",
        "examples/ray": "paceline.places.ray",
    }
    for words, module in needs.items():
        if words in command and find_spec(module) is None:
            return f"{module} is not here yet"
    if "--on spark" in command and not shutil.which("java"):
        return "Spark needs Java"
    words = command.split()
    return (
        f"`paceline {words[1]}` is not here yet"
        if words[0] == "paceline" and not split_command(words[1:])[0]
        else ""
    )


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, uninterrupted: Path) -> Path:
    """What a person has: CIFAR and ImageNet, both tiny, and a finished run."""

    def make(folder: Path) -> None:
        random = np.random.default_rng(0)
        ten, hundred = (
            folder / "data" / "cifar-10-batches-bin",
            folder / "data" / "cifar-100-binary",
        )
        ten.mkdir(parents=True)
        hundred.mkdir()
        for name in [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]:
            records = random.integers(0, 256, (12, 3073), np.uint8)
            records[:, 0] %= 10
            records.tofile(ten / name)
        for name in ("train.bin", "test.bin"):
            records = random.integers(0, 256, (24, 3074), np.uint8)
            records[:, :2] %= 20
            records.tofile(hundred / name)
        write_pictures(folder / "pictures", random)
        assert (
            paceline(
                "data",
                "convert",
                "pictures",
                "imagenet",
                "--first-label",
                "1",
                "--processes",
                "1",
                cwd=folder,
            ).code
            == 0
        )
        (folder / "my_model.py").write_text(f"{OWN_CODE}\n\nbuild = build_model\n")
        shutil.copytree(uninterrupted, folder / "model")

    return once_per_session(tmp_path_factory, "coming-from", make)


def test_the_page_has_commands_for_all_nine_systems() -> None:
    assert len(re.findall(r"^## ", TEXT, re.M)) == 9
    assert len(COMMANDS_NOW) == TEXT.count("\n|") - 2 * 9
    starts = ("paceline ", "python ", "srun ", "docker run ")
    assert all(command.startswith(starts) for command in COMMANDS_NOW)


def is_quick(command: str) -> bool:
    """Trainings take some seconds each: without `long`, the first of each recipe on this machine
    alone."""
    recipe = re.search(r"paceline train (\S+)", command)
    if not recipe:
        return "tensorboard" not in command
    return command == next(c for c in COMMANDS_NOW if f" {recipe[1]} " in c and "--on" not in c)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, id=c, marks=[] if is_quick(c) else [pytest.mark.long])
        for c in COMMANDS_NOW
        if c.startswith(("paceline", "docker"))
    ],
)
def test_what_to_type_now_works(command: str, workspace: Path, tmp_path: Path) -> None:
    """Of a container, only its command: tests/claims/test_image.py runs it in the image."""
    if reason := reason_to_skip(command):
        pytest.skip(reason)
    here = Path(shutil.copytree(workspace, tmp_path / "here"))
    words = smaller(command)
    if words[0] == "tensorboard":
        return tensorboard_answers(words, here)
    alone = not {"--workers", "--ps", "--on", "--threads-per-replica"} & {*words}
    ended = (paceline_here if alone else paceline)(*words, cwd=here)
    assert ended.code == 0, ended.err
    if words[0] == "train":
        assert ended.last_line["finished"] == "true"
        assert int(ended.last_line["step"]) == int(words[words.index("--steps") + 1])
    elif words[0] == "report":
        assert (here / "report.html").exists()
    elif words[0] == "eval":
        assert f"{result_of(here / 'model')['test_accuracy']:.4f}" in ended.out
    return None


@pytest.mark.long
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "it can")
@pytest.mark.parametrize("command", [c for c in COMMANDS_NOW if c.startswith("srun")])
def test_what_to_type_on_slurm_works(command: str, workspace: Path, tmp_path: Path) -> None:
    here = Path(shutil.copytree(workspace, tmp_path / "here"))
    start = (*command[: command.index("paceline")].split(), sys.executable, "-m", "paceline")
    with slurm_cluster(tmp_path / "slurm") as cluster:
        words, settings = smaller(command), {"environment": cluster.environment, "command": start}
        ended = paceline(*words, cwd=here, **settings)
    assert ended.code == 0, ended.err
    assert ended.last_line["finished"] == "true"


def tensorboard_answers(words: list[str], here: Path) -> None:
    port = free_port()
    with program(*words, "--port", str(port), cwd=here) as running:

        def runs() -> list[str]:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/data/runs", timeout=5
                ) as answer:
                    return json.load(answer)
            except OSError:
                assert running.is_running()
                return []

        wait_until(lambda: runs() == ["model"])
        os.kill(running.pid, 15)


@pytest.mark.long
@pytest.mark.parametrize("command", [c for c in COMMANDS_NOW if c.startswith("python")])
def test_the_examples_that_replace_code_run(command: str) -> None:
    if reason := reason_to_skip(command):
        pytest.skip(reason)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, *command.split()[1:]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_the_python_that_replaces_code_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    check = (
        "\nimport numpy as np\n"
        "np.testing.assert_array_equal(2 * paceline.Weights(first).get_flat(), flat)\n"
        "print('same')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + check], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "same\n", done.stderr


@pytest.mark.long
def test_the_two_shells_of_tensorflow_on_spark_train_one_model(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (command,) = re.findall(
        r"`(paceline train official-resnet56 [^`]*--run-dir run)` in both", TEXT
    )
    here = Path(shutil.copytree(workspace, tmp_path / "here"))
    workers = [f"localhost:{free_port()}" for _ in range(2)]
    with ExitStack() as stack:
        shells = []
        for index in range(2):
            task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            monkeypatch.setenv("TF_CONFIG", json.dumps(task))
            shells.append(stack.enter_context(program(*smaller(command), cwd=here)))
        ended = [shell.wait() for shell in shells]
    assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
    assert result_of(here / "run")["finished"]
