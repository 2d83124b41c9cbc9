"""Pure arithmetic: learning rates, and the steps at which training returns, evaluates, saves and
stops."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.experiment.experiment import Average, Experiment, Group, Optimizer, Schedule, Sync
from paceline.experiment.plan import Plan, build_plan
from paceline.experiment.schedule import (
    Rates,
    learning_rate,
    rates_at,
    rates_table,
    unfinished_warmup,
)

STEPS = Schedule(name="steps", rate=0.1, boundaries=(2, 3.5), factors=(0.1, 0.01))
COSINE = Schedule(name="cosine", rate=0.4)
ONE_CYCLE = Schedule(name="one-cycle", rate=0.4, warmup=2, warmup_from=0.1)


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        # 10 steps per epoch, 100 in all
        (Schedule(name="constant", rate=0.3), 0, 0.3),
        (Schedule(name="constant", rate=0.3), 99, 0.3),
        (STEPS, 0, 0.1),
        (STEPS, 19, 0.1),
        (STEPS, 20, 0.01),
        (STEPS, 34, 0.01),
        (STEPS, 35, 0.001),
        (STEPS, 99, 0.001),
        (COSINE, 0, 0.4),
        (COSINE, 25, 0.4 * (1 + math.cos(math.pi / 4)) / 2),
        (COSINE, 50, 0.2),
        (COSINE, 100, 0.0),
        (dataclasses.replace(COSINE, final=0.1), 50, 0.22),
        (dataclasses.replace(COSINE, final=0.1), 100, 0.04),
        (dataclasses.replace(COSINE, warmup=2), 60, 0.2),
        (ONE_CYCLE, 0, 0.4 * (0.1 + 0.9 / 20)),
        (ONE_CYCLE, 9, 0.4 * 0.55),
        (ONE_CYCLE, 19, 0.4),
        (ONE_CYCLE, 20, 0.4),
        (ONE_CYCLE, 60, 0.2),
        (ONE_CYCLE, 100, 0.0),
        (dataclasses.replace(ONE_CYCLE, final=0.5), 60, 0.3),
        (dataclasses.replace(STEPS, warmup=1), 0, 0.01),
        (dataclasses.replace(STEPS, warmup=1), 9, 0.1),
        (dataclasses.replace(STEPS, warmup=1), 20, 0.01),
        (dataclasses.replace(STEPS, warmup=0.25), 0, 0.05),
        (dataclasses.replace(STEPS, warmup=0.25), 1, 0.1),
    ],
)
def test_rates_are_those_of_the_table(schedule, step, expected):
    assert learning_rate(schedule, step, Plan(10, 100), 128) == pytest.approx(
        expected, rel=1e-12, abs=1e-15
    )


@pytest.mark.parametrize(
    ("scale_to_batch", "batch", "expected"),
    [(0, 1024, 0.1), (128, 128, 0.1), (128, 1024, 0.8), (256, 64, 0.025)],
)
def test_the_rate_grows_linearly_with_the_batch_when_asked(scale_to_batch, batch, expected):
    schedule = Schedule(name="constant", rate=0.1, scale_to_batch=scale_to_batch)
    assert learning_rate(schedule, 7, Plan(10, 100), batch) == pytest.approx(expected)


@pytest.mark.parametrize("step", [28284, 42426, 56568])
def test_a_boundary_given_as_step_over_steps_per_epoch_falls_on_that_step(step):
    """28284 / 195 * 195 is a little more than 28284 in floating point."""
    schedule = Schedule(rate=1.0, boundaries=(step / 195,), factors=(0.1,))
    assert learning_rate(schedule, step - 1, Plan(195, 60_000), 256) == 1.0
    assert learning_rate(schedule, step, Plan(195, 60_000), 256) == 0.1


def test_a_warm_up_of_a_tenth_of_thirty_steps_has_three_steps():
    """0.1 * 30 is a little more than 3 in floating point."""
    schedule = Schedule(name="constant", rate=1.0, warmup=0.1)
    rates = [learning_rate(schedule, step, Plan(30, 100), 1) for step in range(4)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])


def test_a_warm_up_given_as_a_share_is_as_long_a_part_of_every_training():
    schedule = Schedule(name="constant", rate=1.0, warmup="1/6")
    for total in (6, 18, 600):
        rates = [learning_rate(schedule, step, Plan(7, total), 1) for step in range(total)]
        assert rates.index(1.0) == total // 6 - 1


def test_a_warm_up_that_training_does_not_complete_is_a_warning_with_its_flag():
    experiment = Experiment(schedule=Schedule(warmup=5), epochs=4.0)
    text = unfinished_warmup(experiment, Plan(10, 40))
    assert "--schedule.warmup 5" in text
    assert "50 steps" in text
    assert "40" in text
    assert not unfinished_warmup(experiment, Plan(10, 51))


@pytest.mark.parametrize("given", ["20%", "5", "-1/5", "1/0", "abc"])
def test_a_warm_up_that_is_not_a_share_is_refused(given):
    with pytest.raises(UserError, match=r"schedule.warmup is .*; give epochs, or a share .* 1/5"):
        Experiment(schedule=Schedule(warmup=given))


def test_a_block_of_rates_has_adams_corrections_of_its_own_steps():
    experiment = Experiment()
    rates = Rates.of_row(rates_table(experiment, Plan(10, 100), 3, 6).T)
    wanted = [learning_rate(experiment.schedule, step, Plan(10, 100), 128) for step in (3, 4, 5)]
    assert rates.learning_rate == pytest.approx(wanted)
    assert rates.bias_1 == pytest.approx([1 - 0.9**n for n in (4, 5, 6)])
    assert rates.bias_2 == pytest.approx([1 - 0.999**n for n in (4, 5, 6)])


@pytest.mark.parametrize(
    ("average", "groups", "step", "ema_decay", "rates"),
    [
        (Average(), (), 3, 0.0, (1.0,)),
        (Average(0.5), (), 3, 0.5, (1.0,)),
        (Average(0.5, every=2), (), 2, 1.0, (1.0,)),
        (Average(0.5, power=1.0), (), 4, 0.25, (1.0,)),
        (Average(), (Group("a", rate=3, until=0.5), Group("b", rate=0)), 4, 0.0, (3.0, 0.0, 1.0)),
        (Average(), (Group("a", rate=3, until=0.5), Group("b", rate=0)), 5, 0.0, (0.0, 0.0, 1.0)),
    ],
)
def test_rates_are_complete_and_keep_their_names_in_a_row(average, groups, step, ema_decay, rates):
    constant = Schedule(name="constant", rate=1.0)
    experiment = Experiment(optimizer=Optimizer(groups=groups), average=average, schedule=constant)
    found = rates_at(experiment, Plan(5, 10), step)
    assert found.learning_rate == 1.0
    assert (found.ema_decay, found.groups) == (ema_decay, rates)
    assert Rates.of_row(found.row()) == found


def walk(plan, block_steps=1_000_000, first=0):
    """Every step at which the loop gets control."""
    step, stops = first, []
    while step < plan.total_steps:
        stop = plan.next_stop(step, block_steps)
        assert stop > step, "the plan must move on"
        step = stop
        stops.append(step)
    return stops


@pytest.mark.parametrize(
    ("plan", "evaluations", "saves"),
    [
        (Plan(10, 30, 1, evaluate_every=10, save_every=10), [10, 20, 30], [10, 20, 30]),
        (
            Plan(10, 25, 1, evaluate_every=10, save_every=4),
            [10, 20, 25],
            [4, 8, 12, 16, 20, 24, 25],
        ),
        (Plan(10, 30, 1), [30], [30]),
        (Plan(10, 30, 1, stop_at=7), [30], [7]),
        # rounds of 4: what is due at 10 waits for 12
        (Plan(10, 30, 4, evaluate_every=10, save_every=5), [12, 20, 30], [8, 12, 16, 20, 28, 30]),
        (Plan(10, 30, 4, evaluate_every=10, stop_at=13), [12, 20, 30], [16]),
        # several are due within one round: once is enough
        (Plan(3, 20, 7, evaluate_every=3, save_every=2), [7, 14, 20], [7, 14, 20]),
    ],
)
def test_evaluations_saves_and_stops_fall_on_the_ends_of_rounds(plan, evaluations, saves):
    steps = range(1, plan.total_steps + 1)
    assert [step for step in steps if plan.evaluates_at(step)] == evaluations
    before_the_stop = [
        step for step in steps if plan.saves_at(step) and not (plan.stop_at and step > saves[-1])
    ]
    assert before_the_stop == saves
    assert set(evaluations) | set(saves) <= set(walk(plan))


def test_a_block_returns_at_the_end_of_an_epoch_and_never_in_the_middle_of_a_round():
    assert walk(Plan(10, 30, 1)) == [10, 20, 30]
    assert walk(Plan(10, 30, 1), block_steps=4) == [4, 8, 10, 14, 18, 20, 24, 28, 30]
    assert walk(Plan(10, 30, 4), block_steps=6) == [4, 8, 12, 16, 20, 24, 28, 30]


def test_a_stop_is_asked_for_once_the_round_of_its_step_has_ended():
    plan = Plan(10, 30, 4, stop_at=13)
    assert [step for step in (12, 16, 20, 30) if plan.stops_at(step)] == [16, 20, 30]
    assert not any(Plan(10, 30).stops_at(step) for step in range(31))
    assert Plan(10, 30, 4, stop_at=99).stops_at(30)


@st.composite
def plans(draw):
    numbers = st.integers(0, 60)
    return Plan(
        steps_per_epoch=draw(st.integers(1, 60)),
        total_steps=draw(st.integers(1, 200)),
        round_steps=draw(st.integers(1, 12)),
        evaluate_every=draw(numbers),
        save_every=draw(numbers),
        stop_at=draw(st.integers(0, 220)),
    )


@given(plans(), st.integers(1, 80))
def test_walking_from_stop_to_stop_passes_no_due_step(plan, block_steps):
    stops = walk(plan, block_steps)
    due = {
        step
        for step in range(1, plan.total_steps + 1)
        if plan.evaluates_at(step) or (plan.saves_at(step) and not plan.stops_at(step))
    }
    if plan.stop_at:
        stopped = [step for step in range(1, plan.total_steps + 1) if plan.stops_at(step)]
        due.add(min([*stopped, plan.total_steps]))
    assert due <= set(stops)
    assert stops[-1] == plan.total_steps
    assert all(stop % plan.round_steps == 0 for stop in stops[:-1])
    longest = max(plan.round_steps, block_steps)
    assert all(b - a <= longest for a, b in zip([0, *stops], stops, strict=False))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"epochs": 3.0}, Plan(7, 21, 1, 7, 7)),
        ({"epochs": 0.5}, Plan(7, 4, 1, 7, 7)),
        ({"epochs": 0.01}, Plan(7, 1, 1, 7, 7)),
        ({"steps": 5}, Plan(7, 5, 1, 7, 7)),
        ({"evaluate_every": 0.0, "save_every": 0.5}, Plan(7, 7, 1, 0, 4)),
        ({"sync": Sync("weights", 3)}, Plan(7, 7, 3, 7, 7)),
        ({"sync": Sync("gradients", 3)}, Plan(7, 7, 1, 7, 7)),
    ],
)
def test_epochs_become_steps(changes, expected):
    assert build_plan(dataclasses.replace(Experiment(), **changes), 1000) == expected


def test_less_than_one_batch_of_data_is_a_clear_error():
    with pytest.raises(
        UserError, match=r"127 training examples, fewer than one global batch of 128"
    ):
        build_plan(Experiment(), 127)
    assert build_plan(Experiment(), 128).steps_per_epoch == 1
