"""Which kernels a training uses: chosen, stored, compared, and never changed silently."""

import json
import shutil
from pathlib import Path

import pytest

from helpers import paceline, result_of
from paceline.kernels import library

NO_KERNELS = {library.DISABLE: "1"}

needs_kernels = pytest.mark.skipif(
    bool(library.why_unavailable()), reason=f"own kernels: {library.why_unavailable()}"
)


@needs_kernels
def test_a_run_stores_which_kernels_it_used(uninterrupted: Path) -> None:
    assert json.loads((uninterrupted / "config.json").read_text())["kernels"] == "own"


@needs_kernels
def test_tensorflows_kernels_give_other_bits_and_the_same_on_one_and_two_workers(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """Without own kernels, auto uses TensorFlow's and says why."""
    alone = paceline("train", "smoke", "--run-dir", "one", cwd=tmp_path, environment=NO_KERNELS)
    assert alone.code == 0
    assert f"slower: {library.DISABLE} is set" in alone.out
    flags = ("--workers", "2", "--kernels", "tensorflow")
    assert paceline("train", "smoke", "--run-dir", "two", *flags, cwd=tmp_path).code == 0
    one, two, own = (
        result_of(run)["state_sha256"]
        for run in (tmp_path / "one", tmp_path / "two", uninterrupted)
    )
    assert one == two
    assert one != own


@needs_kernels
def test_a_resume_with_other_kernels_is_refused_in_one_line_that_names_the_flag(
    stopped_at_5: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped_at_5, tmp_path / "run")
    flags = ("--run-dir", "run", "--kernels", "tensorflow")
    ended = paceline("train", "smoke", *flags, cwd=tmp_path)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert "run was trained with --kernels own" in line
    assert result_of(tmp_path / "run")["step"] == 5


def test_own_kernels_that_are_missing_are_one_line(tmp_path: Path) -> None:
    flags = ("--run-dir", "run", "--kernels", "own")
    ended = paceline("train", "smoke", *flags, cwd=tmp_path, environment=NO_KERNELS)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert f"kernels is own, but {library.DISABLE} is set; give --kernels tensorflow" in line


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--precision", "bfloat16"), "they are for float32"),
        (("--threads-per-replica", "2", "--replicas", "1"), "they use one thread"),
    ],
)
def test_own_kernels_that_do_not_fit_the_experiment_are_one_line(
    tmp_path: Path, flags: tuple[str, ...], reason: str
) -> None:
    ended = paceline("train", "smoke", "--dry-run", "--kernels", "own", *flags, cwd=tmp_path)
    assert ended.code == 2
    assert reason in ended.err
