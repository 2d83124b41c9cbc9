"""The settings that a search tries."""

import math

from paceline.experiment.recipes.table import get_recipe
from paceline.extras.search.space import Choice, Interval, build_space, draw, parse_over

SMOKE = get_recipe("smoke")
OVER = ("schedule.rate=0.01..0.5:log", "optimizer.weight-decay=1e-4,5e-4")


def test_over_takes_ranges_and_lists_of_every_kind_of_setting() -> None:
    words = (
        *("schedule.rate=0.05..0.8:log", "optimizer.weight-decay=1e-4,5e-4", "seed=1,2,2"),
        *("augment.flip=true,false", "schedule.name=cosine,one-cycle", "augment.padding=0..4"),
    )
    space = parse_over(words, SMOKE)
    assert space == {
        "schedule.rate": Interval(0.05, 0.8, log=True),
        "optimizer.weight_decay": Choice((1e-4, 5e-4)),
        "augment.padding": Interval(0, 4),
        "augment.flip": Choice((True, False)),
        "schedule.name": Choice(("cosine", "one-cycle")),
        "seed": Choice((1, 2)),
    }
    assert build_space({"schedule__rate": "0.05..0.8:log"}, SMOKE) == {
        "schedule.rate": Interval(0.05, 0.8, log=True)
    }


def test_the_same_seed_draws_the_same_trials_and_more_trials_begin_with_them() -> None:
    space = parse_over(OVER, SMOKE)
    few, many = draw(space, 4, 0), draw(space, 40, 0)
    assert many[:4] == few
    assert draw(space, 4, 1) != few
    rates = [each["schedule.rate"] for each in many]
    assert len(set(rates)) == 40
    assert all(0.01 <= rate <= 0.5 and rate == float(f"{rate:.4g}") for rate in rates)
    below = sum(rate < math.sqrt(0.01 * 0.5) for rate in rates)
    assert 12 <= below <= 28  # half of them, on a logarithmic scale
    assert {each["optimizer.weight_decay"] for each in many} == {1e-4, 5e-4}
    assert few[0] == {"schedule.rate": 0.3857, "optimizer.weight_decay": 0.0005}


def test_whole_numbers_and_lists_are_drawn_without_repeats_until_all_are_drawn() -> None:
    space = parse_over(("seed=1..3", "augment.flip=true,false"), SMOKE)
    every = {(seed, flip) for seed in (1, 2, 3) for flip in (True, False)}
    for count in (6, 16):
        drawn = draw(space, count, 0)
        assert len(drawn) == 6
        assert {(each["seed"], each["augment.flip"]) for each in drawn} == every
    logs = draw(parse_over(("model.width=1..64:log",), SMOKE), 40, 0)
    assert min(each["model.width"] for each in logs) < 4 < 30 < max(e["model.width"] for e in logs)
