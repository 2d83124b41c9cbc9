"""Data that are not the same: a resumed run and all workers refuse them with exit code 2."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers import free_addresses, program, tf_config
from in_process import paceline_here
from paceline.data.digests import SAMPLES, spread

FLAGS = (
    *("train", "smoke", "--data.dir", "data", "--data.image-size", "8", "--augment.padding", "0"),
    *("--global-batch-size", "4", "--evaluate-every", "0", "--steps", "3"),
    *("--replicas", "2"),
)


def write_pictures(folder: Path, count: int) -> list[Path]:
    """Write so many images to train on and one to test, the last of class b; return them in the
    order of the source."""
    for name, number in (("train", count), ("val", 1)):
        for each in range(number):
            place = folder / name / ("ab"[each == count - 1])
            place.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(np.full((9, 9, 3), each + 1, np.uint8))
            image.save(place / f"{each:03d}.png")
    return sorted(folder.rglob("*.png"))


@pytest.mark.slow
def test_a_run_is_not_resumed_with_different_data_and_continues_with_its_own(
    tmp_path: Path,
) -> None:
    files = write_pictures(tmp_path / "data", 2 * SAMPLES)
    sampled, other = files[0], files[1]
    assert spread(len(files))[:2] == [0, 2]
    run = (*FLAGS, "--data.source", "pictures", "--run-dir", "run")

    def resume(file: Path, content: bytes) -> str:
        kept = file.read_bytes()
        file.write_bytes(content)
        ended = paceline_here(*run, cwd=tmp_path)
        file.write_bytes(kept)
        assert ended.code == 2, ended
        return ended.err.splitlines()[-1]

    assert paceline_here(*run, "--stop-at", "1", cwd=tmp_path).code == 0
    same_size = files[4].read_bytes()
    assert len(same_size) == sampled.stat().st_size
    words = "paceline: run cannot continue, the data is not the same: "
    assert resume(sampled, same_size).startswith(f"{words}content ")
    assert resume(other, other.read_bytes() + b"\0").startswith(f"{words}content ")
    ended = paceline_here(*run, "--stop-at", "1", cwd=tmp_path)
    assert ended.code == 0, ended


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("lacking", "reason"), [(None, "differs from the chief: data.content"), (1, "no"), (0, "no")]
)
def test_workers_with_different_data_do_not_train_together(
    lacking: int | None, reason: str, tmp_path: Path
) -> None:
    """Each task has a folder `data` of its own, in which one label differs, or it is not there."""
    cluster = {"worker": free_addresses(2)}
    for index in range(2):
        folder = tmp_path / str(index) / ("elsewhere" if index == lacking else "data")
        folder.mkdir(parents=True)
        labels = np.array([0, 1, 0, 1 - index, 0])
        for name in ("train", "test"):
            np.save(folder / f"{name}_images.npy", np.zeros((5, 8, 8, 3), np.uint8))
            np.save(folder / f"{name}_labels.npy", labels)
        (folder / "classes.json").write_text('["a", "b"]')
    flags = (*FLAGS, "--data.source", "arrays", "--run-dir", str(tmp_path / "run"))

    def task(index: int) -> object:
        environment = tf_config(cluster, "worker", index, model_dir="")
        return program(*flags, cwd=tmp_path / str(index), environment=environment)

    with task(0) as chief, task(1) as other:
        ended = [chief.wait(), other.wait()]
    assert [each.code for each in ended] == [2, 2], ended
    for each in ended:
        line = each.err.splitlines()[-1]
        assert line.startswith("paceline: "), ended
        assert lacking is not None or "worker 1 (127.0.0.1:" in line
        assert reason in line
    assert not (tmp_path / "run" / "checkpoints").exists()
