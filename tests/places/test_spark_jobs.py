"""Converting data on a real Spark cluster, with tasks that are killed or run twice."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from helpers import TIMEOUT_S, Program, once_per_session, paceline, program, wait_until
from spark_runs import SPARK_TIMEOUT_S, TWO_SLOTS, on_spark, spark_master  # noqa: F401

pytestmark = pytest.mark.timeout(5 * TIMEOUT_S)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise, which takes its time to decode; one of the files is no picture."""

    def make(folder: Path) -> None:
        noise = random.Random(5)
        for number in range(400):
            file = folder / "pictures" / f"class-{number % 3}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.frombytes("RGB", (200, 200), noise.randbytes(120_000)).save(
                file, compress_level=1
            )
        (folder / "pictures/class-1/bad.png").write_bytes(b"no picture")

    return once_per_session(tmp_path_factory, "spark-pictures", make) / "pictures"


CONVERSION = ("--split", "0.1", "--shards", "2")


def convert_and_disturb(
    pictures: Path, folder: Path, where: tuple[str, ...], disturb: Callable[[int], None]
) -> None:
    """Convert on Spark, disturb a process that writes a shard, compare with one machine."""
    assert paceline("data", "convert", str(pictures), "local", *CONVERSION, cwd=folder).code == 0
    with program(
        "data", "convert", str(pictures), "out", *CONVERSION, *where, cwd=folder
    ) as running:
        wait_until(
            lambda: (
                (writers := writers_of(running, folder / "out")) and (disturb(writers[0]) or True)
            ),
            SPARK_TIMEOUT_S,
        )
        ended = running.wait(SPARK_TIMEOUT_S)
        running.wait_until_gone(30.0)
    assert ended.code == 0, ended
    assert contents(folder / "out") == contents(folder / "local")


def writers_of(running: Program, out: Path) -> list[int]:
    """Processes of Spark's that have an unfinished training shard open."""
    if not list(out.glob(".train-*.tmp")):
        return []
    return [
        pid
        for pid in running.find("pyspark.daemon")
        if any(".train-" in name for name in open_files(pid))
    ]


def open_files(pid: int) -> list[str]:
    names = []
    try:
        for handle in os.listdir(f"/proc/{pid}/fd"):
            names.append(os.readlink(f"/proc/{pid}/fd/{handle}"))
    except OSError:
        pass
    return names


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that is there, half-written files too."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.long
def test_a_conversion_whose_task_is_killed_once_writes_the_same_bytes_as_one_machine(
    pictures: Path, tmp_path: Path, master: str
) -> None:
    convert_and_disturb(
        pictures, tmp_path, on_spark(master, *TWO_SLOTS), lambda pid: os.kill(pid, signal.SIGKILL)
    )
    assert "train-00001-of-00002" in contents(tmp_path / "out")
    assert "bad.png" in (tmp_path / "out" / "rejected.jsonl").read_text()


@pytest.mark.long
def test_a_shard_that_two_tasks_write_at_a_time_is_there_once(
    pictures: Path, tmp_path: Path, master: str
) -> None:
    eager = (
        "spark.speculation=true",
        "spark.speculation.quantile=0.1",
        "spark.speculation.multiplier=1.1",
    )
    eager += ("spark.speculation.interval=100ms", "spark.speculation.minTaskRuntime=100ms")
    convert_and_disturb(
        pictures,
        tmp_path,
        on_spark(master, *TWO_SLOTS, *eager),
        lambda pid: os.kill(pid, signal.SIGSTOP),
    )
