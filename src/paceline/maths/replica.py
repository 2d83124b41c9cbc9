"""The pure core: what one replica computes, as functions of (state, step, replica) alone.

Any worker can compute any replica of any step with the same result. Which worker computes which
replica, and how workers exchange vectors, is the engine's business. Each function is opaque to
TensorFlow's graph optimizer. Within such a function the optimizer may reorder sums, always in the
same way; it cannot merge them with the operations that an engine puts around the function, which
would give each engine its own bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from paceline.data.batches import Batch, build_eval_batches, build_train_batches
from paceline.data.draws import op_key
from paceline.data.images import image_shape
from paceline.data.source import Source, Split
from paceline.experiment.data import Views
from paceline.experiment.experiment import Experiment
from paceline.experiment.groups import check_patterns, find_group, groups_of
from paceline.experiment.plan import Phase, Plan, build_phases
from paceline.experiment.schedule import Rates
from paceline.maths import losses
from paceline.maths.metrics import Tail
from paceline.maths.opaque import opaque
from paceline.maths.state import AVERAGED_STATS, State, StateLayout
from paceline.maths.template import Template
from paceline.maths.update import Update, Vectors, build_update, moving_averages, slot_names


class Step(NamedTuple):
    """What a replica computes: its part of a step. A named tuple can be an argument of a compiled
    function."""

    step: tf.Tensor
    replica: tf.Tensor
    signals: tf.Tensor
    """The end of its tail (`maths.metrics.SIGNALS`)."""
    loss_scale: tf.Tensor | None = None


class Examined(NamedTuple):
    """What an evaluation batch gives; examples include padding."""

    row: tf.Tensor
    """As `maths.evaluation` describes it."""
    outputs: tf.Tensor
    labels: tf.Tensor


@dataclass(frozen=True)
class CorePhase:
    """The functions of the steps from `first` to the next phase."""

    first: int
    batch: Callable[[tf.Tensor, tf.Tensor], Batch]
    """(step, replica) -> the replica's slice, prepared"""
    replica_step: Callable[[tf.Tensor, tf.Tensor, Batch, Step], tf.Tensor]
    """(params, stats, batch, step) -> [gradients | new stats | tail]"""


@dataclass(frozen=True)
class Core:
    """An experiment on its data and model, as pure functions.

    Vectors are those of `layout`, in its order.
    """

    experiment: Experiment
    plan: Plan
    source: Source
    template: Template
    layout: StateLayout
    train: Split
    """The examples to train on."""
    splits: dict[str, Split]
    """The splits to evaluate: test, and validation if the experiment holds one out."""
    phases: tuple[CorePhase, ...]
    apply: Update
    """(vectors, mean of the replicas' vectors, rates) -> the vectors after the step"""
    eval_batch_size: int
    examine: dict[str, Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Examined]]
    """By split: (params, stats, batch number) -> what the model does on the batch"""

    @property
    def batch(self) -> Callable[[tf.Tensor, tf.Tensor], Batch]:
        """Return the first phase's batch function."""
        return self.phases[0].batch

    def initial_state(self) -> State:
        """Return the state of step 0: the model as it was built, and empty slots."""
        vectors = self.template.initial()
        known = vectors | {"ema": vectors["params"], AVERAGED_STATS: vectors["stats"]}
        known[losses.LOSS_SCALE] = losses.INITIAL_SCALE
        empty = np.zeros_like(vectors["params"])
        return State(0, {name: known.get(name, empty) for name in self.layout.parts})

    def replica_vector(self, params: tf.Tensor, stats: tf.Tensor, now: Step) -> tf.Tensor:
        """Return [gradients | new stats | tail] of a replica on its own slice of a step.

        The graph contains all phases, so that each is compiled before its turn.
        """

        def compute(phase: CorePhase) -> tf.Tensor:
            return phase.replica_step(params, stats, phase.batch(now.step, now.replica), now)

        if len(self.phases) == 1:
            return compute(self.phases[0])
        later = tf.constant([phase.first for phase in self.phases[1:]], tf.int64)
        number = tf.reduce_sum(tf.cast(now.step >= later, tf.int32))
        return tf.switch_case(number, [partial(compute, phase) for phase in self.phases])

    def evaluate_batches(
        self, split: str, params: tf.Tensor, stats: tf.Tensor, first: tf.Tensor, count: int
    ) -> tf.Tensor:
        """Return the rows of `count` evaluation batches from number `first` on, side by side."""
        examine = self.examine[split]
        return tf.stack([examine(params, stats, first + k).row for k in range(count)])


def build_core(
    experiment: Experiment,
    plan: Plan,
    source: Source,
    splits: dict[str, Split],
    template: Template,
    num_classes: int,
    views: Views = "none",
) -> Core:
    """Put the pure functions of an experiment together; `splits` has train, test and perhaps
    validation. Evaluation takes the mean over `views`."""
    held_out = {name: split for name, split in splits.items() if name != "train"}
    layout = build_layout(experiment, template)
    eval_batch_size = choose_eval_batch_size(image_shape(experiment, source))
    examine = {}
    for name, split in held_out.items():
        batch_of = build_eval_batches(experiment, split, num_classes, eval_batch_size)
        examine[name] = _build_examine(experiment, template, batch_of, views)
    return Core(
        experiment=experiment,
        plan=plan,
        source=source,
        template=template,
        layout=layout,
        train=splits["train"],
        splits=held_out,
        phases=_build_phases(experiment, plan, splits["train"], template, num_classes),
        apply=_build_apply(experiment, layout, template),
        eval_batch_size=eval_batch_size,
        examine=examine,
    )


def _build_phases(
    experiment: Experiment, plan: Plan, train: Split, template: Template, num_classes: int
) -> tuple[CorePhase, ...]:
    """Return the functions of each phase; phases with the same images share their batches."""
    check_patterns(experiment.optimizer, [name for name, _ in template.params])
    groups = groups_of(experiment.optimizer)
    targets_of = losses.build_targets(experiment, num_classes)
    phases = build_phases(experiment, plan)
    batches = {
        size: opaque(build_train_batches(experiment, train, targets_of, size))
        for size in {phase.image_size for phase in phases}
    }

    def frozen(phase: Phase) -> list[str]:
        return [name for name, _ in template.params if find_group(groups, name) in phase.frozen]

    return tuple(
        CorePhase(
            phase.first,
            batches[phase.image_size],
            _build_replica_step(experiment, template, frozen(phase)),
        )
        for phase in phases
    )


def build_layout(experiment: Experiment, template: Template) -> StateLayout:
    """Return the vectors of a state, in the order in which they are stored."""
    slots = dict.fromkeys(slot_names(experiment.optimizer), template.params)
    parts = {"params": template.params, **slots}
    if experiment.average.decay:
        parts["ema"] = template.params
    if losses.has_loss_scale(experiment):
        parts[losses.LOSS_SCALE] = losses.SCALE_PART
    parts["stats"] = template.stats
    if experiment.average.decay:
        parts[AVERAGED_STATS] = template.stats
    return StateLayout(parts)


def choose_eval_batch_size(shape: tuple[int, int, int]) -> int:
    """Return a size that depends on the image shape alone: it changes the last bits of a logit."""
    return 250 if shape[0] * shape[1] <= 64 * 64 else 50


def _build_replica_step(
    experiment: Experiment, template: Template, frozen: list[str]
) -> Callable[[tf.Tensor, tf.Tensor, Batch, Step], tf.Tensor]:
    def replica_step(params: tf.Tensor, stats: tf.Tensor, batch: Batch, now: Step) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(params)
            key = op_key("layers", experiment.seed, now.step, now.replica)
            outputs, new_stats, extra = template.call(
                params, stats, batch.images, True, key, frozen
            )
            own_loss = losses.training_loss(experiment, outputs, batch.targets)
            loss = tf.add_n([own_loss, *(tf.cast(loss, tf.float32) for loss in extra)])
            minimized = loss if now.loss_scale is None else loss * now.loss_scale
        gradient = tape.gradient(minimized, params, unconnected_gradients="zero")
        if now.loss_scale is not None:
            gradient /= now.loss_scale
        count = tf.cast(tf.shape(batch.labels)[0], tf.float32)
        tail = tf.stack([loss, tf.reduce_sum(losses.correct(outputs, batch.labels)), count])
        return tf.concat([gradient, new_stats, tail, now.signals], 0)

    return opaque(replica_step)


def _build_apply(experiment: Experiment, layout: StateLayout, template: Template) -> Update:
    sizes = [layout.sizes()["params"], template.moving_size(), len(Tail)]
    update = _build_update(experiment, layout)

    def apply(vectors: Vectors, mean: tf.Tensor, rates: Rates[tf.Tensor]) -> Vectors:
        gradient, moving, _ = tf.split(mean, sizes)
        stats = template.merge(vectors["stats"], moving)
        new = {**update(vectors, gradient, rates), "stats": stats}
        new |= moving_averages(experiment, vectors, new, rates)
        if AVERAGED_STATS in new:
            new[AVERAGED_STATS] = template.keep_fixed(vectors[AVERAGED_STATS], new[AVERAGED_STATS])
        if losses.LOSS_SCALE in vectors:
            return losses.keep_if_finite(vectors, new, gradient)
        return new

    return opaque(apply)


def _build_update(experiment: Experiment, layout: StateLayout) -> Update:
    optimizer, params = experiment.optimizer, layout.parts["params"]
    if not optimizer.groups:
        return build_update(optimizer, params)
    from paceline.maths.grouped_update import build_grouped_update

    return build_grouped_update(optimizer, params)


def _build_examine(
    experiment: Experiment, template: Template, batch_of: Callable[[tf.Tensor], Batch], views: Views
) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Examined]:
    def examine(params: tf.Tensor, stats: tf.Tensor, number: tf.Tensor) -> Examined:
        batch = batch_of(number)

        def call(images: tf.Tensor) -> tf.Tensor:
            return template.call(params, stats, images, training=False)[0]

        outputs = _mean_outputs(call, batch.images, views)
        loss = losses.cross_entropy(experiment, outputs, batch.targets)
        among_five = tf.cast(
            tf.math.in_top_k(batch.labels, outputs, min(5, outputs.shape[-1])), tf.float32
        )
        sums = [
            tf.reduce_sum(v * batch.weights)
            for v in (loss, losses.correct(outputs, batch.labels), among_five, tf.ones_like(loss))
        ]
        probabilities = tf.nn.softmax(outputs) if experiment.model.outputs == "logits" else outputs
        single = [tf.cast(values, tf.float32) for values in (batch.labels, tf.argmax(outputs, -1))]
        row = tf.concat([tf.stack(sums), *single, tf.reduce_max(probabilities, -1)], 0)
        return Examined(row, outputs, batch.labels)

    return opaque(examine)


def _mean_outputs(
    call: Callable[[tf.Tensor], tf.Tensor], images: tf.Tensor, views: Views
) -> tf.Tensor:
    if views == "none":
        return call(images)
    from paceline.maths.view_average import mean_over_views

    return mean_over_views(call, images, views)
