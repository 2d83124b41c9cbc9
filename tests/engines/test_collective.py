"""The collective engine in one process: the same bits on one device and on many."""

import inspect
from dataclasses import replace
from functools import cache
from importlib import import_module

import numpy as np
import pytest
import tensorflow as tf

from paceline.engines.base import ENGINES
from paceline.engines.collective import CollectiveEngine
from paceline.engines.pairs import Collectives
from paceline.experiment.experiment import Average, Model, Sync
from paceline.experiment.schedule import Rates, rates_at, rates_table
from paceline.kernels.library import why_unavailable
from paceline.maths.metrics import Tail, num_batches, summarize
from paceline.maths.replica import Step
from paceline.maths.state import State
from tiny import (
    CLASSES,
    EXPERIMENT,
    build_small_model,
    build_source,
    build_tiny_core,
    dense_model,
    number,
    with_optimizer,
)

STEPS = 7  # over two epochs of 3 steps, and two rounds of 3 with a short one
METHODS = ("gradients", "weights")
long = pytest.mark.long
without_kernels = {"condition": bool(why_unavailable()), "reason": "own kernels are missing"}


def experiment_of(replicas, method="gradients", **changes):
    return replace(
        EXPERIMENT,
        replicas=replicas,
        global_batch_size=16 - 16 % replicas,
        sync=Sync(method, 3),
        steps=STEPS,
        **changes,
    )


@cache
def core_of(replicas, method="gradients", **changes):
    return build_tiny_core(experiment_of(replicas, method, **changes), build_small_model())


def build_engine(core, strategy=None, side_by_side=1):
    engine = CollectiveEngine(
        core, strategy or tf.distribute.OneDeviceStrategy("/cpu:0"), side_by_side
    )
    engine.load(core.initial_state())
    return engine


@cache
def engine_of(replicas, method="gradients", side_by_side=1):
    """One process on one device, compiled once for all tests; each test loads its own state."""
    return build_engine(core_of(replicas, method), side_by_side=side_by_side)


@cache
def alone(replicas, method="gradients", stops=(STEPS,), side_by_side=1):
    """Digest and losses of one process on one device."""
    engine = engine_of(replicas, method, side_by_side)
    engine.load(core_of(replicas, method).initial_state())
    return train(engine, stops)


def train(engine, stops=(STEPS,)):
    start, losses = engine.state().step, []
    for stop in stops:
        losses += engine.advance(start, stop).losses.tolist()
        start = stop
    return engine.state().sha256(), losses


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_opened_as_the_protocol_says(name):
    connect = import_module(ENGINES[name]).connect
    assert list(inspect.signature(connect).parameters) == ["job", "wants_stop"]


# --- the engine against the three lines of the design, one after another, with NumPy's tree


def mean_by_numpy(vectors):
    def total(part):
        half = len(part) // 2
        return np.add(total(part[:half]), total(part[half:])) if half else part[0]

    return total(vectors) * (np.float32(1) / np.float32(len(vectors)))


def replica_vector(core, vectors, step, replica):
    params, stats = tf.constant(vectors["params"]), tf.constant(vectors["stats"])
    now = Step(number(step), number(replica), tf.zeros([2]))
    return core.replica_vector(params, stats, now).numpy()


def apply(core, vectors, mean, step):
    row = rates_table(core.experiment, core.plan, step, step + 1)[0]
    tensors = {name: tf.constant(v) for name, v in vectors.items()}
    new = core.apply(tensors, tf.constant(mean), Rates.of_row(tf.constant(row)))
    return {name: new[name].numpy() for name in vectors}


def by_hand_with_gradients(core):
    vectors = core.initial_state().vectors
    for step in range(STEPS):
        each = [replica_vector(core, vectors, step, k) for k in range(core.experiment.replicas)]
        vectors = apply(core, vectors, mean_by_numpy(each), step)
    return State(STEPS, vectors).sha256()


def by_hand_with_weights(core):
    vectors = core.initial_state().vectors
    for first in range(0, STEPS, 3):
        ends = []
        for replica in range(core.experiment.replicas):
            own = vectors
            for step in range(first, min(first + 3, STEPS)):
                own = apply(core, own, replica_vector(core, own, step, replica), step)
            ends.append(own)
        vectors = {name: mean_by_numpy([own[name] for own in ends]) for name in vectors}
    return State(STEPS, vectors).sha256()


BY_HAND = {"gradients": by_hand_with_gradients, "weights": by_hand_with_weights}


@pytest.mark.parametrize(
    ("method", "replicas"),
    [("gradients", 1), ("gradients", 3), ("weights", 3), pytest.param("weights", 4, marks=long)],
)
def test_the_engine_does_what_the_design_says_bit_for_bit(method, replicas):
    assert alone(replicas, method)[0] == BY_HAND[method](core_of(replicas, method))


@pytest.mark.slow
def test_what_is_compared_here_can_differ():
    digests = {alone(replicas, method)[0] for replicas in (3, 4) for method in METHODS}
    assert len(digests) == 4
    assert core_of(3).initial_state().sha256() not in digests


# --- devices, blocks, replicas side by side


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "replicas", "num_devices"),
    [(method, *case) for method in METHODS for case in [(3, 2), (4, 4)]]
    + [pytest.param(*case, marks=long) for case in [("weights", 6, 3), ("gradients", 7, 4)]],
)
def test_one_process_equals_mirrored_devices_bit_for_bit(mirrored, method, replicas, num_devices):
    engine = build_engine(core_of(replicas, method), mirrored(num_devices))
    assert train(engine) == alone(replicas, method)
    for variable in engine._vectors.values():
        copies = mirrored(num_devices).experimental_local_results(variable)
        assert len(copies) == num_devices
        assert len({each.numpy().tobytes() for each in copies}) == 1, "devices differ in the end"


def test_exchanges_in_the_order_that_gpus_need_give_the_same_bits(mirrored):
    engine = build_engine(core_of(3), mirrored(3))
    engine._exchange.ordered = True
    assert train(engine) == alone(3)


def test_a_wrong_order_of_gathered_vectors_is_noticed_before_training(mirrored, monkeypatch):
    for num_devices in (2, 3):
        build_engine(core_of(3), mirrored(num_devices)).check({})
    monkeypatch.setattr(Collectives, "_is_first", lambda *_: False)
    with pytest.raises(RuntimeError, match="wrong sum"):
        build_engine(core_of(3), mirrored(3)).check({})


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param("tensorflow", marks=[] if why_unavailable() else long),
        pytest.param("own", marks=pytest.mark.skipif(**without_kernels)),
    ],
)
def test_a_resnet_on_mirrored_devices_equals_one_process_bit_for_bit(mirrored, kernels):
    experiment = replace(EXPERIMENT, kernels=kernels, model=Model(depth=8, width=8))
    core = build_tiny_core(replace(with_optimizer(experiment, clip_norm=1.0), average=Average(0.9)))
    assert core.template.kernels == kernels
    assert train(build_engine(core, mirrored(2)), (2,)) == train(
        build_engine(core, side_by_side=4), (2,)
    )


@pytest.mark.parametrize(
    ("method", "stops"), [("gradients", (1, 2, 6, 7)), ("weights", (3, 6, 7)), ("weights", (6, 7))]
)
def test_where_blocks_end_does_not_change_the_bits(method, stops):
    assert alone(4, method, stops) == alone(4, method)


@pytest.mark.parametrize(("method", "side_by_side"), [("gradients", 2), ("weights", 4)])
def test_how_many_replicas_run_at_a_time_does_not_change_the_bits(method, side_by_side):
    assert alone(4, method, side_by_side=side_by_side) == alone(4, method)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_state_taken_out_and_loaded_elsewhere_goes_on_with_the_same_bits(method):
    core, first, second = core_of(4, method), engine_of(4, method), engine_of(4, method, 2)
    first.load(core.initial_state())
    digest, losses = train(first, (3,))
    state = first.state()
    assert state.step == 3
    assert list(state.vectors) == list(core.layout.parts)
    second.load(state)
    assert second.state().sha256() == digest
    end, later = train(second, (7,))
    assert (end, losses + later) == alone(4, method)
    assert state.sha256() == digest, "a state that was taken out belongs to who took it"


# --- what a block reports


@pytest.mark.parametrize("method", METHODS)
def test_a_block_reports_each_of_its_steps(method):
    core, engine = core_of(4, method), engine_of(4, method)
    engine.load(core.initial_state())
    block = engine.advance(0, STEPS)
    assert block.num_steps == len(block.accuracies) == len(block.learning_rates) == STEPS
    vectors = core.initial_state().vectors
    tails = np.array([replica_vector(core, vectors, 0, k)[-core.tail_size :] for k in range(4)])
    assert block.losses[0] == pytest.approx(tails[:, Tail.LOSS].mean())
    assert block.accuracies[0] == pytest.approx(tails[:, Tail.CORRECT].sum() / 16)
    wanted = [rates_at(core.experiment, core.plan, step).learning_rate for step in range(STEPS)]
    assert block.learning_rates == pytest.approx(wanted)


# --- evaluation


def by_keras(core, params, split="test"):
    """Accuracy, loss and top five of every example of a split, once."""
    images, labels = core.splits[split].read(tf.range(core.splits[split].size, dtype=tf.int64))
    scaling = core.experiment.scaling
    x = ((images.numpy().astype(float) - scaling.mean) / scaling.std).reshape(len(images), -1)
    kernel, bias = params[:-CLASSES].astype(float).reshape(-1, CLASSES), params[-CLASSES:]
    logits, labels = x @ kernel + bias, labels.numpy()
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
    place = (logits > logits[np.arange(len(labels)), labels][:, None]).sum(1)
    means = {"accuracy": (place == 0).mean(), "loss": loss.mean(), "top5": (place < 5).mean()}
    return means | {"count": len(labels)}


@pytest.mark.slow
def test_evaluation_counts_every_example_once_on_any_number_of_devices(mirrored):
    """Three batches for up to eight side by side, and a split of one example."""
    core = build_tiny_core(EXPERIMENT, dense_model(), build_source(test=503), validation=1)
    engines = [
        build_engine(core, mirrored(devices) if devices > 1 else None, side_by_side)
        for devices, side_by_side in [(1, 1), (1, 2), (2, 1), (4, 2)]
    ]
    first, *others = [engine.evaluate(final=True) for engine in engines]
    assert (first.splits["test"].count, first.splits["validation"].count) == (503, 1)
    assert others == [first] * 3
    for split in ("test", "validation"):
        for name, value in by_keras(core, core.initial_state().vectors["params"], split).items():
            found = getattr(first.splits[split], name)
            assert found == pytest.approx(value, rel=1e-5), (split, name)


def test_the_moving_average_is_evaluated_with_statistics_of_its_own():
    """With those of the last weights, ResNet-20 had lost six points after ten epochs."""
    core = build_tiny_core(replace(EXPERIMENT, average=Average(0.9)), build_small_model())
    engine = build_engine(core)
    engine.load(core.initial_state())
    engine.advance(0, 5)
    state = engine.state().vectors
    numbers = range(num_batches(core.splits["test"].size, core.eval_batch_size))

    def loss(params: str, stats: str) -> float:
        rows = [core.examine["test"](state[params], state[stats], number(n)).row for n in numbers]
        return summarize(np.stack(rows)).loss

    assert engine.evaluate(final=True).splits["test"].loss == loss("ema", "ema_stats")
    assert loss("ema", "ema_stats") != loss("ema", "stats")


def test_the_test_set_is_looked_at_only_in_the_end_where_there_is_a_validation_split():
    engine = build_engine(build_tiny_core(EXPERIMENT, dense_model(), validation=30))
    assert list(engine.evaluate(final=False).splits) == ["validation"]
    both = engine.evaluate(final=True)
    assert (both.splits["validation"].count, both.splits["test"].count) == (30, 13)


def test_evaluation_changes_nothing():
    engine = engine_of(4)
    engine.load(core_of(4).initial_state())
    train(engine, (3,))
    before = engine.state().sha256()
    assert engine.evaluate(final=True) == engine.evaluate(final=True)
    assert engine.state().sha256() == before


@pytest.mark.parametrize("method", METHODS)
def test_the_state_in_memory_is_the_state_with_the_tails_that_led_to_it(method):
    engine = engine_of(2, method)
    engine.load(engine._core.initial_state())
    first, second = engine.advance(0, 3), engine.advance(3, STEPS)
    held = engine.held()
    assert (held.step, held.sha256()) == (STEPS, engine.state().sha256())
    losses = [*first.losses, *second.losses]
    assert held.tails[:, Tail.LOSS].tolist() == losses
    engine.load(held)
    again = engine.held()
    assert (again.step, again.sha256()) == (STEPS, held.sha256())
    assert np.array_equal(again.tails, held.tails)


def test_no_python_number_that_changes_is_given_to_tensorflow(monkeypatch):
    """It keeps a tensor of each for ever: a day's blocks would leave 12 MB in each worker."""
    engine, given, constant = build_engine(core_of(2)), [], tf.constant
    engine.advance(0, 1)
    monkeypatch.setattr(
        tf, "constant", lambda *values: given.append(values[0]) or constant(*values)
    )
    engine.advance(1, 2)
    assert given
    assert not [value for value in given if isinstance(value, int | float)]


def test_a_state_that_is_half_updated_or_has_diverged_is_not_held():
    engine = engine_of(2)
    engine.load(engine._core.initial_state())
    engine.advance(0, 2)
    engine._memory._begun.assign(3)
    assert engine.held() is None
    engine._memory._begun.assign(2)
    assert engine.held().step == 2
    engine._memory._tails.assign(np.full([8192, len(Tail) + 2], np.nan, np.float32))
    assert engine.held() is None


# --- what NCCL would be asked, which needs the same order on all members


def recorded_calls(mirrored, monkeypatch, members, replicas=None):
    """Return the calls of each member as (kind, group, instance, hint), in the order of its graph;
    computed on logical devices of the CPU, with the hint of theirs."""
    calls = {}

    def record(kind, real):
        def called(**given):
            own = tf.distribute.get_replica_context().replica_id_in_sync_group
            row = kind, given["group_key"], given["instance_key"], given["communication_hint"]
            calls.setdefault(int(tf.get_static_value(own)), []).append(row)
            return real(**given | {"communication_hint": "auto"})

        return called

    for kind in ("CollectiveGatherV2", "CollectiveReduceV2"):
        monkeypatch.setattr(tf.raw_ops, kind, record(kind, getattr(tf.raw_ops, kind)))
    replicas = replicas or members
    engine = build_engine(core_of(replicas), mirrored(members))
    engine._exchange.ordered = True
    assert train(engine) == alone(replicas)
    return [calls[member] for member in range(members)]


def drains(queues):
    """Whether calls that block until the whole group is there all end: a group's two members must
    have the same call first in their queues."""
    queues = [list(queue) for queue in queues]
    while any(queues):
        first = [queue[0][:3] if queue else None for queue in queues]
        ready = [k for k, call in enumerate(first) if call and first.count(call) == 2]
        if not ready:
            return False
        for k in ready:
            queues[k].pop(0)
    return True


@pytest.mark.parametrize(
    ("members", "replicas"), [(2, 4), (3, 3), pytest.param(4, 6, marks=pytest.mark.slow)]
)
def test_calls_of_nccl_cannot_wait_for_each_other(mirrored, monkeypatch, members, replicas):
    queues = recorded_calls(mirrored, monkeypatch, members, replicas)
    kinds = {call[0] for queue in queues for call in queue}
    assert kinds == {"CollectiveReduceV2" if members == 2 else "CollectiveGatherV2"}
    assert {call[3] for queue in queues for call in queue} == {"nccl"}
    assert drains(queues)
    if members > 2:  # two members have one call for each chunk
        assert not drains([queues[0][::-1], *queues[1:]])
