"""`paceline data info` and `check`, and folders that cannot be read."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers import assert_refused, files_in, fine, paceline
from in_process import paceline_here


def write_cifar10(folder: Path) -> Path:
    folder.mkdir()
    for number, name in enumerate(
        [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    ):
        random = np.random.default_rng(number)
        records = random.integers(0, 256, (8, 3073), np.uint8)
        records[:, 0] = np.arange(8) % 10
        records.tofile(folder / name)
    return folder


def damage_nothing_there(folder: Path) -> list[str]:
    shutil.rmtree(folder)
    return [f"there is no folder {folder}", "paceline data fetch cifar10"]


def damage_cut_by_one_byte(folder: Path) -> list[str]:
    file = folder / "data_batch_3.bin"
    os.truncate(file, file.stat().st_size - 1)
    return [f"{file} is cut short", f"offset {7 * 3073} has 3072 of 3073 bytes"]


@pytest.mark.parametrize("damage", [damage_nothing_there, damage_cut_by_one_byte])
def test_a_bad_data_folder_gets_one_line(damage: Callable[[Path], list[str]], here: Path) -> None:
    folder = write_cifar10(here.parent / "cifar")
    parts = damage(folder)
    command = ("train", "cifar10-resnet20", "--data.dir", str(folder))
    assert_refused(paceline_here(*command, cwd=here), *parts)
    assert files_in(here) <= {"runs"}


def test_data_info_shows_the_examples_of_each_class(here: Path) -> None:
    write_cifar10(here / "cifar")
    ended = paceline_here("data", "info", "cifar", cwd=here)
    assert (ended.code, ended.err) == (0, "")
    rows = [line.split() for line in ended.out.splitlines()]
    assert ["all", "40", "8"] in rows
    assert ["airplane", "5", "1"] in rows
    assert ["truck", "0", "0"] in rows


@pytest.mark.long
def test_data_info_prints_no_warnings_of_tensorflow(tmp_path: Path):
    """In a process of its own, because TensorFlow writes past Python's standard error."""
    Image.new("RGB", (20, 20)).save(tmp_path / "image.png")
    for place in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / "photos" / place).mkdir(parents=True)
        shutil.copy(tmp_path / "image.png", tmp_path / "photos" / place)
    fine(paceline("data", "convert", "photos", "records", cwd=tmp_path))
    for folder in ("photos", "records"):
        ended = fine(paceline("data", "info", folder, cwd=tmp_path))
        assert ended.err == ""
