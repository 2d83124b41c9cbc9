"""`paceline bench`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import paceline
from in_process import paceline_here


@pytest.mark.parametrize(
    ("place", "workers"),
    [
        pytest.param("local", "1", marks=pytest.mark.slow),
        *(pytest.param(place, "2", marks=pytest.mark.long) for place in ("ps", "ray", "spark")),
    ],
)
def test_bench_measures_real_training(place: str, workers: str, tmp_path: Path) -> None:
    flags = ("--seconds", "1", "--workers", workers, "--on", place)
    ended = paceline("bench", "smoke", *flags, cwd=tmp_path)
    assert ended.code == 0, ended
    assert re.fullmatch(rf"smoke +{place} +{workers} workers? +[\d,]+ images/s\n", ended.out), ended
    assert not list(tmp_path.iterdir())


def test_bench_refuses_what_needs_data_and_unknown_recipes(tmp_path: Path) -> None:
    for arguments, part in (
        (["imagenet-resnet50"], "needs its data"),
        (["cifar"], "unknown recipe"),
        (["--seconds", "0"], "above 0"),
    ):
        ended = paceline_here("bench", *arguments, cwd=tmp_path)
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended
        assert part in ended.err
