"""`paceline bench`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import paceline
from in_process import paceline_here


@pytest.mark.slow
def test_bench_measures_real_training_and_says_what_a_full_run_takes(tmp_path: Path) -> None:
    ended = paceline("bench", "smoke", "--seconds", "1", "--workers", "1", cwd=tmp_path)
    assert ended.code == 0, ended
    assert re.fullmatch(
        r"smoke +one process +[\d,]+ images/s  full run: about \d+ s of training\n", ended.out
    ), ended.out
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "told"), [("ps", "2 + 1 ps"), ("ray", "Ray, 2 actors"), ("spark", "Spark, 2 tasks")]
)
def test_bench_measures_in_every_place(place: str, told: str, tmp_path: Path) -> None:
    ended = paceline(
        "bench", "smoke", "--seconds", "1", "--workers", "2", "--on", place, cwd=tmp_path
    )
    assert ended.code == 0, ended
    assert re.fullmatch(
        rf"smoke +{re.escape(told)} +[\d,]+ images/s  full run: about \d+ s of training",
        ended.out.strip(),
    ), ended
    assert list(tmp_path.iterdir()) == []


def test_bench_refuses_what_needs_data_and_unknown_recipes(tmp_path: Path) -> None:
    for arguments, part in (
        (["imagenet-resnet50"], "needs its data"),
        (["cifar"], "unknown recipe"),
        (["--seconds", "0"], "above 0"),
    ):
        ended = paceline_here("bench", *arguments, cwd=tmp_path)
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended
        assert part in ended.err
