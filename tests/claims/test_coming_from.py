"""docs/coming-from.md: every command that it tells people to type now is run, as it stands there,
with fewer steps and less data."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cifar_folders import write_binary
from helpers import OWN_CODE, TIMEOUT_S, once_per_session, paceline, result_of
from in_process import paceline_here
from small_images import write_images

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "coming-from.md").read_text()
COMMANDS_NOW = [
    row.rsplit("|", 2)[1].strip().strip("`")
    for row in TEXT.splitlines()
    if row.startswith("|") and row.endswith("` |")
]
"""The right column of every table."""
CIFAR = {"--steps": "2", "--model.depth": "8", "--global-batch-size": "8"}
IMAGENET = {"--steps": "1", "--model.depth": "18", "--model.width": "8"} | {
    "--global-batch-size": "4",
    "--data.image-size": "32",
}
"""What makes a run small; in place of the command's own values, if it has them."""


def smaller(command: str) -> list[str]:
    """Return the words after `paceline`; of a container with its folders as its -v flags say."""
    inside = command[command.index("paceline-gpu" if "docker" in command else "paceline ") :]
    for folder, mounted in re.findall(r"-v \$PWD/(\w+):(\S+)", command):
        inside = inside.replace(mounted, folder)
    words = shlex.split(inside)[1:]
    if words[:2] == ["data", "convert"]:
        return ["data", "convert", "data/cifar-10-batches-bin", *words[3:]]
    if words[0] != "train":
        return words
    flags = dict(IMAGENET if words[1] == "uai-resnet50" else CIFAR)
    flags |= {"--epochs": "1"} if "--epochs" in words else {}
    flags |= {"--data.validation": "8"} if words[1] == "estimator-resnet44" else {}
    flags |= {"--devices": "cpu"} if "--gpus" in words else {}
    flags |= {"--spark.master": "local-cluster[2,1,1024]"} if "--spark.master" in words else {}
    if "--model.build" in words:
        flags.pop("--model.depth")
    for flag, value in flags.items():
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    return words


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, uninterrupted: Path) -> Path:
    """What a person has: CIFAR and ImageNet, both tiny, and a finished run."""

    def make(folder: Path) -> None:
        for name, place in (("cifar10", "10-batches-bin"), ("cifar100", "100-binary")):
            write_binary(folder / "data" / f"cifar-{place}", name, per_file=24)
        write_images(folder / "pictures", "pictures")
        convert = "data convert pictures imagenet --first-label 1 --processes 1"
        assert paceline(*convert.split(), cwd=folder).code == 0
        (folder / "my_model.py").write_text(f"{OWN_CODE}\n\nbuild = build_model\n")
        shutil.copytree(uninterrupted, folder / "model")

    return once_per_session(tmp_path_factory, "coming-from", make)


@pytest.fixture
def here(workspace: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(workspace, tmp_path / "here"))


def test_the_page_has_commands_for_all_nine_systems() -> None:
    assert len(re.findall(r"^## ", TEXT, re.M)) == 9
    assert len(COMMANDS_NOW) == TEXT.count("\n|") - 2 * 9
    starts = ("paceline ", "python ", "srun ", "docker run ", "tensorboard ")
    assert all(command.startswith(starts) for command in COMMANDS_NOW)


def to_run() -> list[str]:
    """Return the commands of this machine; of those that are the same in small, only the first."""
    found = [c for c in COMMANDS_NOW if c.startswith(("paceline", "docker"))]
    small = {" ".join(smaller(c)).replace(" --run-dir run", ""): c for c in reversed(found)}
    return [c for c in small.values() if "tensorboard" not in c]


def marks_of(command: str) -> list[pytest.MarkDecorator]:
    """Runs take seconds: the first of each recipe on this machine is slow, the others long."""
    if not (recipe := re.search(r"paceline train (\S+)", command)):
        return []
    first = next(c for c in COMMANDS_NOW if f" {recipe[1]} " in c and "--on" not in c)
    return [pytest.mark.slow if command == first else pytest.mark.long]


@pytest.mark.parametrize("command", [pytest.param(c, id=c, marks=marks_of(c)) for c in to_run()])
def test_what_to_type_now_works(command: str, here: Path) -> None:
    """Of a container, only its command; tests/cli starts TensorBoard."""
    if "--on spark" in command and not shutil.which("java"):
        pytest.skip("Spark needs Java")
    words = smaller(command)
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


@pytest.mark.slow
def test_the_python_that_replaces_code_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    check = (
        "\nimport numpy as np\n"
        "np.testing.assert_array_equal(2 * paceline.Weights(first).get_flat(), flat)\n"
    )
    subprocess.run([sys.executable, "-c", code + check], timeout=TIMEOUT_S, check=True)
