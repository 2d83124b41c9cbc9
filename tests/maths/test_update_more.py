"""Groups of weights, moving averages, and float16 with a loss scale that is part of the state."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline.engines.collective import CollectiveEngine
from paceline.engines_more.parameter_server.ps_base import layer_bounds
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Optimizer, Schedule, Sync
from paceline.experiment.optimizer import groups_of
from paceline.experiment.plan import Phase, Plan, build_phases, build_plan
from paceline.experiment.recipes.table import get_recipe
from paceline.experiment.schedule import Rates, rates_table
from paceline.maths import update_more as groups
from paceline.maths.state import LOSS_SCALE
from paceline.maths.update import slot_names
from tiny import EXPERIMENT, build_tiny_core, with_optimizer
from tiny import groups as parsed

PARTS = (("a/kernel", (3, 3, 4, 8)), ("a/beta", (8,)), ("b/kernel", (8, 5)), ("b/bias", (5,)))
SGD = Optimizer(momentum=0.8, nesterov=True, weight_decay=0.01)
GROUPS = parsed("a/kernel rule=muon momentum=0.6", "*/beta rate=64 decay=0.5", "b/bias rate=0")
SIZE = sum(int(np.prod(shape)) for _, shape in PARTS)


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def vectors_of(optimizer):
    names = ("params", *slot_names(optimizer))
    return {name: tf.constant(random(i, SIZE)) for i, name in enumerate(names)}


def row_of(optimizer, decay=1.0, rate=0.1):
    factors = [group.rate for group in groups_of(optimizer)]
    numbers = [rate, 1, 1, decay, *(rate * factor for factor in factors)]
    return Rates.of_row(tf.constant(numbers, tf.float32))


def pieces(vector):
    ends = np.cumsum([np.prod(shape) for _, shape in PARTS])[:-1]
    return [
        piece.reshape(shape)
        for piece, (_, shape) in zip(np.split(vector, ends), PARTS, strict=True)
    ]


def orthogonal_by_numpy(gradient):
    """The iteration on singular values: it leaves the vectors as they are."""
    a, b, c = 3.4445, -4.7750, 2.0315
    u, s, v = np.linalg.svd(np.float64(gradient) / np.linalg.norm(gradient), full_matrices=False)
    for _ in range(3):
        s = a * s + b * s**3 + c * s**5
    return u * s @ v


def test_each_group_is_updated_by_its_own_rule_rate_and_decay_as_numpy_does():
    optimizer = replace(SGD, groups=GROUPS)
    before, gradient = vectors_of(optimizer), random(9, SIZE)
    after = groups.build_grouped_update(optimizer, PARTS)(before, gradient, row_of(optimizer))
    (w, beta, b, bias), (mw, mbeta, mb, mbias), (gw, gbeta, gb, _) = (
        pieces(np.float64(each)) for each in (before["params"], before["momentum"], gradient)
    )
    momentum = 0.6 * mw + gw
    direction = orthogonal_by_numpy((gw + 0.6 * momentum).reshape(-1, 8)).reshape(w.shape)
    wanted = [w * 8**0.5 / np.linalg.norm(w) - 0.1 * (direction + 0.01 * w)]
    momenta = [momentum]
    for value, old, slope, rate, decay in ((beta, mbeta, gbeta, 6.4, 0.5), (b, mb, gb, 0.1, 0.01)):
        slope = slope + decay * value
        momenta.append(0.8 * old + slope)
        wanted.append(value - rate * (slope + 0.8 * momenta[-1]))
    for found, right in zip(pieces(after["params"].numpy()), [*wanted, bias], strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5)
    for found, right in zip(pieces(after["momentum"].numpy()), [*momenta, mbias], strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_three_iterations_bring_most_singular_values_near_one():
    found = np.linalg.svd(groups.orthogonal(random(3, 72, 16)).numpy(), compute_uv=False)
    assert found.min() > 0.6
    assert found.max() < 1.3


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_slices_between_variables_give_the_bits_of_the_whole(name):
    optimizer = replace(SGD, name=name, groups=parsed("a/kernel rule=muon", "*/beta rate=3"))
    vectors, gradient = vectors_of(optimizer), tf.constant(random(9, SIZE))
    row = row_of(optimizer, decay=0.9)
    update = groups.build_grouped_update(optimizer, PARTS)
    whole = tf.function(update)(vectors, gradient, row)
    found = []
    for start, stop in layer_bounds(PARTS, 3):
        update = groups.build_grouped_update(optimizer, PARTS, slice(start, stop))
        own = {key: vector[start:stop] for key, vector in vectors.items()}
        found.append(tf.function(update)(own, gradient[start:stop], row))
    for key, vector in whole.items():
        parts = np.concatenate([each[key].numpy() for each in found])
        np.testing.assert_array_equal(parts, vector.numpy())


@pytest.mark.slow
def test_groups_that_change_nothing_give_the_bits_of_no_groups():
    plain = with_optimizer(weight_decay=0.01)
    grouped = with_optimizer(plain, groups=parsed("*/kernel rate=1"))
    digests = [[state.sha256() for state in trained(each)[0]] for each in (plain, grouped)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3


def trained(experiment):
    """The states after 0, 2 and 6 steps, and their core."""
    core = build_tiny_core(replace(experiment, steps=6))
    engine = CollectiveEngine(core, tf.distribute.OneDeviceStrategy("/cpu:0"), 2)
    states = [engine.load(core.initial_state())]
    for start, stop in ((0, 2), (2, 6)):
        engine.advance(start, stop)
        states.append(engine.state())
    return states, core


def piece_of(core, state, name, vector="params"):
    return next(
        state.vectors[vector][where]
        for _, found, where, _ in core.layout.pieces()
        if found == f"{vector}/{name}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("sync", [Sync(), Sync(method="weights", every=2)])
def test_frozen_weights_stay_bit_for_bit_and_the_others_train(sync):
    """Always, or from a share of the steps on; with decay, momentum and Muon, which would change
    them."""
    frozen = parsed("stem_conv/kernel rate=0", "head_dense/kernel until=0.34", "*/kernel rule=muon")
    experiment = replace(with_optimizer(weight_decay=0.1, groups=frozen), sync=sync)
    states, core = trained(experiment)
    for name, stays, stays_late in (
        ("stem_conv/kernel", True, True),
        ("head_dense/kernel", False, True),
        ("stage1_block1_conv1/kernel", False, False),
    ):
        start, middle, end = (piece_of(core, state, name) for state in states)
        assert np.array_equal(start, middle) is stays, name
        assert np.array_equal(middle, end) is stays_late, name


def test_phases_change_with_the_size_of_images_and_with_what_is_frozen():
    experiment = replace(
        EXPERIMENT,
        augment=Augmentation(sizes=(4, 6), size_epochs=(1.0, 2.5)),
        optimizer=Optimizer(groups=parsed("a rate=0", "b until=0.5")),
        epochs=4,
    )
    plan = build_plan(experiment, 160)
    assert build_phases(experiment, plan) == (
        Phase(0, 4, (0,)),
        Phase(10, 6, (0,)),
        Phase(20, 6, (0, 1)),
        Phase(25, 0, (0, 1)),
    )
    rounds = replace(experiment, sync=Sync(method="weights", every=4))
    phases = build_phases(rounds, build_plan(rounds, 160))
    assert [phase.first for phase in phases] == [0, 12, 20, 28]
    assert build_phases(EXPERIMENT, build_plan(EXPERIMENT, 160)) == (Phase(0, 0, ()),)


def test_the_rate_of_a_group_ends_its_curve_when_it_is_frozen():
    experiment = replace(
        get_recipe("smoke"),
        schedule=Schedule(name="one-cycle", rate=2.0),
        optimizer=Optimizer(groups=parsed("a rate=3 until=0.5", "b rate=0")),
    )
    a, b, others = Rates.of_row(rates_table(experiment, Plan(5, 10), 0, 10).T).groups
    np.testing.assert_allclose(a, [6, 4.8, 3.6, 2.4, 1.2, 0, 0, 0, 0, 0], rtol=1e-6)
    assert not b.any()
    np.testing.assert_allclose(others, 2 - 0.2 * np.arange(10), rtol=1e-6)


def test_moving_averages_follow_the_new_weights_and_statistics():
    old = {"ema": tf.fill([3], 1.0), "ema_stats": tf.fill([3], 2.0)}
    new = {"params": tf.fill([3], 10.0), "stats": tf.fill([3], 11.0)}
    rates = Rates.of_row(tf.constant([0.1, 1.0, 1.0, 0.75, 0.1]))
    averages = groups.moving_averages(old, new, rates)
    np.testing.assert_array_equal(averages["ema"], 0.75 * 1 + 0.25 * 10)
    np.testing.assert_array_equal(averages["ema_stats"], 0.75 * 2 + 0.25 * 11)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("", "must begin with a pattern, such as"),
        ("*/kernel speed=2", "'.* speed=2' is not 'PATTERN KEY=VALUE"),
        ("*/kernel rate=fast", "'.*' is not .*the keys are rate, decay, momentum"),
        ("*/kernel rate=-1", "optimizer.groups.rate is -1.0; it must be 0 to 1,000,000,000"),
        ("*/kernel until=2", "optimizer.groups.until is 2.0; it must be 0 to 1"),
        ("*/kernel momentum=1", "optimizer.groups.momentum is 1.0; it must be 0 to below 1"),
        ("*/kernel rule=sign", "optimizer.groups.rule is 'sign'; it must be one of '', 'muon'"),
    ],
)
def test_a_wrong_group_is_a_clear_error(group, message):
    with pytest.raises(UserError, match=message):
        with_optimizer(groups=parsed(group))


def test_a_group_that_fits_no_weight_is_an_error_that_lists_names():
    with pytest.raises(
        UserError, match=r"no weight belongs to 'kernel.*the names are stem_conv/ker"
    ):
        build_tiny_core(with_optimizer(groups=parsed("kernel rate=2")))


def test_a_momentum_of_its_own_is_for_sgd_and_muon():
    with pytest.raises(UserError, match="groups of adamw cannot have their own"):
        with_optimizer(name="adamw", groups=parsed("*/kernel momentum=0.5"))
    with_optimizer(name="adamw", groups=parsed("*/kernel rule=muon momentum=0.5"))


# --- float16


@pytest.fixture(scope="module")
def half():
    """The core of an experiment in float16."""
    try:
        return build_tiny_core(
            replace(EXPERIMENT, precision="float16", replicas=3, global_batch_size=12)
        )
    finally:
        keras.config.set_dtype_policy("float32")


def scaled(core, strategy, scale, steps=3):
    """The state after some steps from a loss scale."""
    engine = CollectiveEngine(core, strategy, side_by_side=1)
    first = core.initial_state()
    first.vectors[LOSS_SCALE] = np.array([scale, 0], np.float32)
    engine.load(first)
    block = engine.advance(0, steps)
    return first, engine.state(), block


def test_a_step_that_overflows_changes_nothing_but_the_scale(half, mirrored):
    first, state, block = scaled(half, mirrored(1), 2.0**29, steps=1)
    assert state.vectors["loss_scale"].tolist() == [2.0**28, 0]
    for name in ("params", "momentum", "stats"):
        np.testing.assert_array_equal(state.vectors[name], first.vectors[name])
    assert np.isfinite(block.losses).all()


def test_the_scale_grows_after_many_finite_steps_within_its_limits():
    def after(scale, count, finite):
        vectors = {LOSS_SCALE: tf.constant([scale, count])}
        gradient = tf.constant([1.0, 0.0 if finite else np.nan])
        return groups.keep_if_finite(vectors, {}, gradient)[LOSS_SCALE].numpy().tolist()

    assert after(8.0, 5.0, True) == [8.0, 6]
    assert after(8.0, 1999.0, True) == [16.0, 0]
    assert after(2.0**30, 1999.0, True) == [2.0**30, 0]
    assert after(8.0, 1999.0, False) == [4.0, 0]
    assert after(1.0, 3.0, False) == [1.0, 0]
