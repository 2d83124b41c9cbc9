"""The commands of docs/coming-from.md, and how to make them small enough for tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "coming-from.md").read_text()
COMMANDS_NOW = [
    row.rsplit("|", 2)[1].strip().strip("`")
    for row in TEXT.splitlines()
    if row.startswith("|") and row.endswith("` |")
]
"""The right column of every table."""

SMALL = {
    "cifar": {"--steps": "2", "--model.depth": "8", "--global-batch-size": "8"},
    "imagenet": {
        "--steps": "1",
        "--model.depth": "18",
        "--model.width": "8",
        "--global-batch-size": "4",
        "--data.image-size": "32",
    },
}
"""What makes a training small; in place of the command's own values, if it has them."""
VALIDATION = {"estimator-resnet44": {"--data.validation": "8"}}


def without_container(command: str) -> str:
    """The command of a container with its folders outside, as its --volume flags say."""
    folders = dict(each.split(":")[::-1] for each in re.findall(r"-v \$PWD/(\S+)", command))
    inside = command[command.index(" paceline ") + 1 :]
    for mounted, folder in folders.items():
        inside = inside.replace(mounted, folder)
    return inside


def smaller(command: str) -> list[str]:
    if command.startswith("docker"):
        command = without_container(command)
    words = shlex.split(command[command.index("paceline ") :])[1:]
    if words[0] != "train":
        return words
    flags = SMALL["imagenet" if words[1] == "uai-resnet50" else "cifar"]
    flags = flags | VALIDATION.get(words[1], {})
    if "--model.build" in words:
        flags.pop("--model.depth")
    if "--epochs" in words:
        words[words.index("--epochs") + 1] = "1"
    for flag, value in flags.items():
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    if "--spark.master" in words:
        words[words.index("--spark.master") + 1] = "local-cluster[2,1,1024]"
    return words


def write_pictures(folder: Path, random: np.random.Generator) -> None:
    for split, count in (("train", 6), ("val", 2)):
        for name in ("ant", "bee"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                Image.fromarray(random.integers(0, 256, (40, 48, 3), np.uint8)).save(
                    folder / split / name / f"{i}.jpg"
                )
