"""Data that cannot be read for a moment: it is read again, then the workers start again.

Faults are real where the kernel gives them: a read of /proc/self/mem at its begin fails with EIO.
"""

import builtins
import errno
import io
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cifar_folders import write_binary, write_pickles
from image_folders import convert_here
from in_process import paceline_here
from paceline import launch
from paceline.data.build_source import build_source
from paceline.errors import PassingFault
from paceline.experiment.experiment import Data
from paceline.formats.arrays import save_arrays
from paceline.formats.check import check
from paceline.formats.reading import explain
from paceline.run_folder.folder import RunFolder
from paceline.storage import array_files, files
from small_images import write_images


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAUSES_S", (0.0, 0.0, 0.0))


def write_arrays(folder: Path) -> None:
    images = np.arange(12 * 8 * 8 * 3, dtype=np.uint8).reshape(12, 8, 8, 3)
    labels = np.arange(12) % 2
    save_arrays(folder, (images[:8], labels[:8]), (images[8:], labels[8:]), ["a", "b"])


def write_linked_pictures(folder: Path) -> None:
    """Links, so that also the entries of a folder must be looked at."""
    write_images(folder / ".kept", "pictures")
    for name in ("train", "val"):
        for kind in (folder / ".kept" / name).iterdir():
            (folder / name / kind.name).mkdir(parents=True)
            for image in kind.iterdir():
                (folder / name / kind.name / image.name).symlink_to(image)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "cifar10": lambda folder: write_binary(folder, "cifar10"),
    "cifar100": lambda folder: write_pickles(folder, "cifar100"),
    "arrays": write_arrays,
    "pictures": write_linked_pictures,
    "tfrecord": lambda folder: write_images(folder, "tfrecord"),
}


class Disk:
    """Counts what is asked of the files of a folder; some of it fails."""

    def __init__(self, folder: Path, code: int) -> None:
        self.fails: Callable[[int], bool] = lambda number: False
        self.calls = 0
        self._folder, self._code = str(folder), code

    def ask(self, path: Any) -> None:
        if isinstance(path, int) or not os.fspath(path).startswith(self._folder):
            return
        self.calls += 1
        if self.fails(self.calls):
            raise OSError(self._code, os.strerror(self._code), path)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Disk:
    disk = Disk(tmp_path / "data", request.param)
    opened, stat, scandir = io.open, os.stat, os.scandir

    class Raw(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            disk.ask(self.name)
            return super().readinto(buffer)

        def readall(self) -> bytes:
            disk.ask(self.name)
            return super().readall()

    def faulty_open(path: Any, mode: str = "r", *arguments: Any, **settings: Any) -> Any:
        disk.ask(path)
        if mode == "rb":
            return io.BufferedReader(Raw(path))
        return opened(path, mode, *arguments, **settings)

    def asking(function: Any) -> Any:
        def ask(path: Any = ".", *arguments: Any, **settings: Any) -> Any:
            disk.ask(path)
            return function(path, *arguments, **settings)

        return ask

    for owner in (builtins, io):
        monkeypatch.setattr(owner, "open", faulty_open)
    monkeypatch.setattr(os, "stat", asking(stat))
    monkeypatch.setattr(os, "scandir", asking(scandir))
    return disk


@pytest.mark.parametrize("disk", [errno.EIO, errno.ESTALE], indirect=True)
@pytest.mark.parametrize("name", SOURCES)
def test_whatever_fails_once_while_data_are_opened_is_tried_again_and_for_long_may_pass(
    tmp_path: Path, disk: Disk, name: str
) -> None:
    SOURCES[name](tmp_path / "data")
    data = Data(source="auto", dir=str(tmp_path / "data"), image_size=8)
    build_source(data)  # an index of records is there from now on
    disk.calls = 0
    whole = build_source(data)
    for number in range(1, disk.calls + 1):
        disk.calls, disk.fails = 0, lambda call, number=number: call == number
        found = build_source(data)
        assert (found.digest, found.classes) == (whole.digest, whole.classes)
        disk.calls, disk.fails = 0, lambda call, number=number: call >= number
        with pytest.raises(PassingFault, match=r"cannot .*data"):
            build_source(data)


def break_file(file: Path) -> Callable[[], Any]:
    """Let every read of a file fail with EIO; return what mends it."""
    whole = file.with_name(f".{file.name}")
    file.rename(whole)
    file.symlink_to("/proc/self/mem")
    return lambda: whole.rename(file)


def test_a_file_that_ends_before_its_size_is_not_called_damaged() -> None:
    with pytest.raises(OSError, match="only 3 of 8 bytes could be read") as caught:
        array_files.read_exactly(io.BytesIO(b"abc"), 8)
    assert caught.value.errno in files.PASSING


@pytest.mark.parametrize("fault", ["gone", "EIO"])
@pytest.mark.parametrize("kind", ["pictures", "tfrecord"])
def test_a_batch_whose_files_cannot_be_read_fails_with_what_may_pass(
    tmp_path: Path, kind: str, fault: str
) -> None:
    folder = tmp_path / "data"
    write_images(folder, kind)
    source = build_source(Data(source=kind, dir=str(folder), image_size=8))
    file = folder / ("train/class0/0.png" if kind == "pictures" else "train-00000-of-00001")
    read = tf.function(source.train.read)
    before = [tensor.numpy().tolist() for tensor in read(tf.range(4, dtype=tf.int64))]
    if fault == "EIO":
        mend = break_file(file)
    else:
        folder.rename(tmp_path / "gone")
        mend = partial((tmp_path / "gone").rename, folder)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(tf.range(4, dtype=tf.int64))
    reason = explain(caught.value)
    assert isinstance(reason, PassingFault)
    assert re.search("No such file" if fault == "gone" else "Input/output", str(reason))
    mend()
    assert "could not be read, but can be now" in str(explain(caught.value))
    after = [tensor.numpy().tolist() for tensor in read(tf.range(4, dtype=tf.int64))]
    assert after == before


def test_a_conversion_leaves_out_no_image_because_the_disk_fails(tmp_path: Path) -> None:
    write_images(tmp_path / "data", "pictures")
    mend = break_file(tmp_path / "data" / "train" / "class0" / "2.png")
    with pytest.raises(PassingFault, match=r"2\.png: Input/output error"):
        convert_here(tmp_path / "data", tmp_path / "records")
    with pytest.raises(PassingFault, match=r"2\.png: Input/output error"):
        check(tmp_path / "data", processes=1)
    mend()
    convert_here(tmp_path / "data", tmp_path / "records again")
    assert check(tmp_path / "records again", processes=1).problems == ()


def test_a_folder_that_cannot_be_looked_at_is_not_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Any, **_: Any) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "stat", stale)
    with pytest.raises(PassingFault, match=r"config\.json: Stale file handle"):
        RunFolder(tmp_path).exists()
    with pytest.raises(PassingFault, match=r"result\.json: Stale file handle"):
        RunFolder(tmp_path).read_result()


@pytest.mark.parametrize("lasting", [False, True])
def test_workers_start_again_while_data_cannot_be_read_and_a_lasting_fault_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    write_arrays(tmp_path / "data")
    mend, pauses = break_file(tmp_path / "data" / "test_images.npy"), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not lasting:
            mend()

    monkeypatch.setattr(launch, "time", SimpleNamespace(sleep=sleep))
    flags = ("--data.source", "arrays", "--data.dir", "data", "--augment.padding", "0")
    sizes = ("--steps", "2", "--global-batch-size", "4", "--evaluate-every", "0")
    ended = paceline_here(
        "train", "smoke", *flags, *sizes, "--max-restarts", "2", "--run-dir", "run", cwd=tmp_path
    )
    assert ended.code == (2 if lasting else 0), ended
    assert ended.out.count("trying again in") == len(pauses) == (2 if lasting else 1)
    text = "paceline: cannot read data/test_images.npy: Input/output error\n"
    assert ended.err == (text if lasting else "")
