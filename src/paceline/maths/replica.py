"""The pure core: what one replica computes, as functions of (state, step, replica) alone.

Any worker can compute any replica of any step with the same result. Which worker computes which
replica, and how workers exchange vectors, is the engine's business. A round is the steps between
two exchanges.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from paceline.data.batches import Batch, build_eval_batches, build_train_batches
from paceline.data.draws import op_key
from paceline.data.images import image_shape
from paceline.data.source import Source, Split
from paceline.experiment.data import Views
from paceline.experiment.experiment import Experiment
from paceline.experiment.optimizer import check_patterns, find_group, groups_of
from paceline.experiment.plan import Plan, build_phases
from paceline.experiment.schedule import Rates
from paceline.kernels.arithmetic import number, plain, total
from paceline.maths import losses
from paceline.maths.metrics import tail_scale, tail_size
from paceline.maths.signatures import sign
from paceline.maths.state import AVERAGED_STATS, LOSS_SCALE, SCALE_PART, State, StateLayout
from paceline.maths.template import Template
from paceline.maths.update import Update, Vectors, build_update, clip_scale, slot_names


def opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that the graph optimizer neither inlines nor merges with others.

    The optimizer would turn (a+b)+(c+d) into one AddN, which adds in a different order, and merge
    operations that stand side by side, which would give each engine its own bits. Within an opaque
    function it may reorder sums too, but always in the same way.
    """
    compiled: Callable[..., Any] = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )
    return compiled


@opaque
def add(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Return the sum of two vectors, as one step of the sum over replicas (`maths.sums`)."""
    return plain(number(left) + right)


class Step(NamedTuple):
    """A replica's part of a step. A named tuple can be an argument of a compiled function."""

    step: tf.Tensor
    replica: tf.Tensor
    signals: tf.Tensor
    """The end of its tail but for signatures (`maths.metrics.SIGNALS`)."""
    loss_scale: tf.Tensor | None = None


class Round(NamedTuple):
    """The steps [first, last) from the state `vectors`."""

    vectors: Vectors
    first: tf.Tensor
    last: tf.Tensor
    table: tf.Tensor
    """The rates of the steps (`rates_table`)."""
    signals: tf.Tensor


class CorePhase(NamedTuple):
    """The functions of the steps from `first` to the next phase."""

    first: int
    batch: Callable[[tf.Tensor, tf.Tensor], Batch]
    """(step, replica) -> the replica's slice, prepared"""
    replica_step: Callable[[tf.Tensor, tf.Tensor, Batch, Step], tf.Tensor]
    """(params, stats, batch, step) -> [gradients | new stats | tail]"""


class Core:
    """An experiment on its data and model, as pure functions.

    Vectors are those of `layout`, in its order. `splits` are those to evaluate: test, and
    validation if the experiment holds one out.
    """

    def __init__(
        self,
        experiment: Experiment,
        plan: Plan,
        source: Source,
        splits: dict[str, Split],
        template: Template,
        num_classes: int,
        views: Views = "none",
    ) -> None:
        self.experiment = experiment
        self.plan = plan
        self.source = source
        self.template = template
        self.tail_size = tail_size(experiment.replicas)
        self.layout = build_layout(experiment, template)
        self.train = splits["train"]
        self.splits = {name: split for name, split in splits.items() if name != "train"}
        self.phases = tuple(self._build_phases(num_classes))
        self.apply: Update = opaque(self._build_apply())
        """(vectors, mean of the replicas' vectors, rates) -> the vectors after the step"""
        self.eval_batch_size = choose_eval_batch_size(image_shape(experiment, source))
        self.examine: dict[str, Callable[..., losses.Examined]] = {}
        """By split: (params, stats, batch number) -> what the model does on the batch"""
        for name, split in self.splits.items():
            batch_of = build_eval_batches(experiment, split, num_classes, self.eval_batch_size)
            examine = losses.build_examine(experiment, template, batch_of, views)
            self.examine[name] = opaque(examine)

    def _build_phases(self, num_classes: int) -> Iterator[CorePhase]:
        """Yield the functions of each phase; phases with the same images share their batches."""
        optimizer, names = self.experiment.optimizer, [name for name, _ in self.template.params]
        check_patterns(optimizer, names)
        targets_of = losses.build_targets(self.experiment, num_classes)
        batches = {}
        for phase in build_phases(self.experiment, self.plan):
            size, groups = phase.image_size, groups_of(optimizer)
            if size not in batches:
                batch = build_train_batches(self.experiment, self.train, targets_of, size)
                batches[size] = opaque(batch)
            frozen = [name for name in names if find_group(groups, name) in phase.frozen]
            yield CorePhase(phase.first, batches[size], opaque(self._build_replica_step(frozen)))

    def _build_replica_step(
        self, frozen: list[str]
    ) -> Callable[[tf.Tensor, tf.Tensor, Batch, Step], tf.Tensor]:
        experiment, template = self.experiment, self.template

        def replica_step(params: tf.Tensor, stats: tf.Tensor, batch: Batch, now: Step) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(params)
                key = op_key("layers", experiment.seed, now.step, now.replica)
                outputs, new_stats, extra = template.call(
                    params, stats, batch.images, True, key, frozen
                )
                loss = losses.training_loss(experiment, outputs, batch.targets)
                if extra:  # of the user's own layers
                    loss = tf.add_n([loss, *(tf.cast(each, tf.float32) for each in extra)])
                minimized = loss if now.loss_scale is None else loss * now.loss_scale
            gradient = tape.gradient(minimized, params, unconnected_gradients="zero")
            if now.loss_scale is not None:
                gradient /= now.loss_scale
            count = tf.cast(tf.shape(batch.labels)[0], tf.float32)
            tail = tf.stack([loss, total(losses.correct(outputs, batch.labels)), count])
            signed = sign([gradient, new_stats, tail], now.replica, experiment.replicas)
            return tf.concat([gradient, new_stats, tail, now.signals, signed], 0)

        return replica_step

    def _build_apply(self) -> Update:
        experiment, template, params = self.experiment, self.template, self.layout.parts["params"]
        sizes = [self.layout.sizes()["params"], template.moving_size(), self.tail_size]
        build: Callable[..., Update] = build_update
        if experiment.optimizer.groups:
            from paceline.maths.update_more import build_grouped_update as build
        update, limit = build(experiment.optimizer, params), experiment.optimizer.clip_norm

        def apply(vectors: Vectors, mean: tf.Tensor, rates: Rates[tf.Tensor]) -> Vectors:
            gradient, moving, _ = tf.split(mean, sizes)
            if limit:
                gradient = plain(number(gradient) * clip_scale(gradient, limit))
            stats = template.merge(vectors["stats"], moving)
            new = {**update(vectors, gradient, rates), "stats": stats}
            if experiment.average.decay or LOSS_SCALE in vectors:
                from paceline.maths.update_more import complete

                return complete(experiment, template, vectors, new, gradient, rates)
            return new

        return apply

    def initial_state(self) -> State:
        """Return the state of step 0: the model as it was built, and empty slots."""
        vectors = self.template.initial()
        known = vectors | {"ema": vectors["params"], AVERAGED_STATS: vectors["stats"]}
        known[LOSS_SCALE] = np.array([2.0**15, 0.0], np.float32)
        empty = np.zeros_like(vectors["params"])
        return State(0, {name: known.get(name, empty) for name in self.layout.parts})

    def replica_vector(
        self, params: tf.Tensor, stats: tf.Tensor, now: Step, after: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """Return [gradients | new stats | tail] of a replica on its own slice of a step.

        Its batch may be prepared before the tensors `after` are there. The graph contains all
        phases, so that each is compiled before its turn.
        """

        def compute(phase: CorePhase) -> tf.Tensor:
            batch = phase.batch(now.step, now.replica)
            with tf.control_dependencies(after if len(self.phases) == 1 else []):
                return phase.replica_step(params, stats, batch, now)

        if len(self.phases) == 1:
            return compute(self.phases[0])
        later = tf.constant([phase.first for phase in self.phases[1:]], tf.int64)
        index = tf.reduce_sum(tf.cast(now.step >= later, tf.int32))
        with tf.control_dependencies(after):
            return tf.switch_case(index, [partial(compute, phase) for phase in self.phases])

    def round_vector(
        self, now: Round, replica: tf.Tensor, after: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """Return what one replica contributes to the mean of a round, here of one step."""
        loss_scale = now.vectors[LOSS_SCALE][0] if LOSS_SCALE in now.vectors else None
        step = Step(now.first, replica, now.signals, loss_scale)
        return self.replica_vector(now.vectors["params"], now.vectors["stats"], step, after)

    def finish_round(
        self, vectors: Vectors, mean: tf.Tensor, table: tf.Tensor
    ) -> tuple[Vectors, tf.Tensor]:
        """Return the vectors after a round, from the mean over replicas, and a tail per step."""
        tail = plain(number(mean[-self.tail_size :]) * tail_scale(self.experiment.replicas))
        return self.apply(vectors, mean, Rates.of_row(table[0])), tail[None]

    def round_vectors(
        self, now: Round, first_replica: tf.Tensor, count: int, side_by_side: int, ahead: int = 0
    ) -> list[tf.Tensor]:
        """Return what `count` replicas contribute, computed `side_by_side` at a time, with the
        batches of `ahead` more prepared meanwhile."""
        replicas = [partial(self.round_vector, now, first_replica + k) for k in range(count)]
        return run_side_by_side(replicas, side_by_side, ahead)

    def evaluate_batches(
        self, split: str, params: tf.Tensor, stats: tf.Tensor, first: tf.Tensor, count: int
    ) -> tf.Tensor:
        """Return the rows of `count` evaluation batches from number `first` on, side by side."""
        examine = self.examine[split]
        return tf.stack([examine(params, stats, first + k).row for k in range(count)])


def run_side_by_side(
    replicas: Sequence[Callable[[list[tf.Tensor]], tf.Tensor]], side_by_side: int, ahead: int = 0
) -> list[tf.Tensor]:
    """Put the computations of several replicas into a graph, `side_by_side` of them at a time.

    Each is called with what it waits for before it computes; `ahead` more may begin, to prepare
    their batches. Without the control dependencies TensorFlow would start all of them at once, and
    more replicas than cores take more memory and more time.
    """
    results: list[tf.Tensor] = []
    for k, replica in enumerate(replicas):
        begins, computes = (
            results[k - count : k - count + 1] if k >= count else []
            for count in (side_by_side + ahead, side_by_side)
        )
        with tf.control_dependencies(begins):
            results.append(replica(computes))
    return results


def build_core(experiment: Experiment, *rest: Any) -> Core:
    """Return the core whose rounds are those of `sync.method`; the arguments are `Core`'s."""
    if experiment.sync.method != "weights":
        return Core(experiment, *rest)
    from paceline.maths.weight_rounds import WeightCore

    return WeightCore(experiment, *rest)


def build_layout(experiment: Experiment, template: Template) -> StateLayout:
    """Return the vectors of a state, in the order in which they are stored."""
    slots = dict.fromkeys(slot_names(experiment.optimizer), template.params)
    parts = {"params": template.params, **slots}
    if experiment.average.decay:
        parts["ema"] = template.params
    if experiment.precision == "float16":
        parts[LOSS_SCALE] = SCALE_PART
    parts["stats"] = template.stats
    if experiment.average.decay:
        parts[AVERAGED_STATS] = template.stats
    return StateLayout(parts)


def choose_eval_batch_size(shape: tuple[int, int, int]) -> int:
    """Return a size that depends on the image shape alone: it changes the last bits of a logit."""
    return 250 if shape[0] * shape[1] <= 64 * 64 else 50
