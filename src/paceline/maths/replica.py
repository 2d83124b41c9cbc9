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

import numpy as np
import tensorflow as tf

from paceline.data.batches import Batch, build_eval_batches, build_train_batches, image_shape
from paceline.data.draws import op_key
from paceline.data.source import Source, Split
from paceline.experiment.experiment import Experiment
from paceline.experiment.groups import check_patterns, find_group, groups_of
from paceline.experiment.phases import Phase, build_phases
from paceline.experiment.plan import Plan
from paceline.experiment.schedule import Rates, has_groups
from paceline.experiment.views import Views
from paceline.maths import loss_scale
from paceline.maths.grouped_update import build_grouped_update
from paceline.maths.losses import build_targets, correct, cross_entropy, training_loss
from paceline.maths.metrics import Tail
from paceline.maths.state import AVERAGED_STATS, State, StateLayout
from paceline.maths.template import Template
from paceline.maths.tree import opaque
from paceline.maths.update import Update, Vectors, average_of_stats, build_update, slot_names
from paceline.maths.view_average import mean_over_views


@dataclass(frozen=True)
class CorePhase:
    """The functions of the steps from `first` to the next phase."""

    first: int
    batch: Callable[[tf.Tensor, tf.Tensor], Batch]
    """(step, replica) -> the replica's slice, prepared"""
    replica_step: Callable[..., tf.Tensor]
    """(params, stats, images, targets, labels, step, replica, signals, loss scale or None) ->
    [gradients | new stats | tail]"""


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
    evaluate_batch: dict[str, Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]]
    """By split: (params, stats, batch number) -> a row, as `maths.evaluation` describes it"""
    examine_batch: dict[
        str, Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]
    ]
    """By split: the same, and each example's outputs and label, padding included"""

    @property
    def num_examples(self) -> int:
        """Return the number of training examples."""
        return self.train.size

    @property
    def batch(self) -> Callable[[tf.Tensor, tf.Tensor], Batch]:
        """Return that of the first phase."""
        return self.phases[0].batch

    @property
    def replica_step(self) -> Callable[..., tf.Tensor]:
        """Return that of the first phase."""
        return self.phases[0].replica_step

    def initial_state(self) -> State:
        """Return the state of step 0: the model as it was built, and empty slots."""
        vectors = self.template.initial()
        known = vectors | {"ema": vectors["params"], AVERAGED_STATS: vectors["stats"]}
        known[loss_scale.VECTOR] = loss_scale.INITIAL
        empty = np.zeros_like(vectors["params"])
        return State(0, {name: known.get(name, empty) for name in self.layout.parts})

    @property
    def is_scaled(self) -> bool:
        """Return whether the state has a loss scale."""
        return loss_scale.is_scaled(self.experiment)

    def replica_vector(
        self,
        params: tf.Tensor,
        stats: tf.Tensor,
        step: tf.Tensor,
        replica: tf.Tensor,
        signals: tf.Tensor,
        scale: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return [gradients | new stats | tail] of a replica on its own slice of a step.

        The graph contains all phases, so that each is compiled before its turn. `scale` is the loss
        scale of float16.
        """

        def compute(phase: CorePhase) -> tf.Tensor:
            images, targets, labels, _ = phase.batch(step, replica)
            more = [] if scale is None else [scale]
            return phase.replica_step(
                params, stats, images, targets, labels, step, replica, signals, *more
            )

        if len(self.phases) == 1:
            return compute(self.phases[0])
        later = tf.constant([phase.first for phase in self.phases[1:]], tf.int64)
        number = tf.reduce_sum(tf.cast(step >= later, tf.int32))
        return tf.switch_case(number, [partial(compute, phase) for phase in self.phases])

    def evaluate_batches(
        self, split: str, params: tf.Tensor, stats: tf.Tensor, first: tf.Tensor, count: int
    ) -> tf.Tensor:
        """Return the rows of `count` evaluation batches from number `first` on, side by side."""
        evaluate = self.evaluate_batch[split]
        return tf.stack([evaluate(params, stats, first + k) for k in range(count)])

    def tail(self, vector: tf.Tensor) -> tf.Tensor:
        """Return the numbers of `Tail` from a replica's vector, or from a mean of such vectors."""
        return vector[-len(Tail) :]


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
    train = splits["train"]
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
        train=train,
        splits=held_out,
        phases=_build_phases(experiment, plan, train, template, num_classes),
        apply=_build_apply(experiment, layout, template),
        eval_batch_size=eval_batch_size,
        evaluate_batch={
            name: opaque(lambda *which, each=each: each(*which)[0])
            for name, each in examine.items()
        },
        examine_batch={name: opaque(each) for name, each in examine.items()},
    )


def _build_phases(
    experiment: Experiment, plan: Plan, train: Split, template: Template, num_classes: int
) -> tuple[CorePhase, ...]:
    """Return the functions of each phase; phases with the same images share their batches."""
    check_patterns(experiment.optimizer, [name for name, _ in template.params])
    groups, targets_of = groups_of(experiment.optimizer), build_targets(experiment, num_classes)
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
    """Return the vectors of a state: parameters, the optimizer's slots, statistics, and the average
    of these if there is one of the parameters."""
    parts = {
        "params": template.params,
        **dict.fromkeys(slot_names(experiment.optimizer, experiment.average), template.params),
    }
    scale = {loss_scale.VECTOR: loss_scale.PART} if loss_scale.is_scaled(experiment) else {}
    average = {AVERAGED_STATS: template.stats} if experiment.average.decay else {}
    return StateLayout({**parts, **scale, "stats": template.stats, **average})


def choose_eval_batch_size(shape: tuple[int, int, int]) -> int:
    """Return a size that depends on the image shape alone: it changes the last bits of a logit."""
    return 250 if shape[0] * shape[1] <= 64 * 64 else 50


def _build_replica_step(
    experiment: Experiment, template: Template, frozen: list[str]
) -> Callable[..., tf.Tensor]:
    def replica_step(
        params: tf.Tensor,
        stats: tf.Tensor,
        images: tf.Tensor,
        targets: tf.Tensor,
        labels: tf.Tensor,
        step: tf.Tensor,
        replica: tf.Tensor,
        signals: tf.Tensor,
        scale: tf.Tensor | None = None,
    ) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(params)
            key = op_key("layers", experiment.seed, step, replica)
            outputs, new_stats, extra = template.call(params, stats, images, True, key, frozen)
            own_loss = training_loss(experiment, outputs, targets)
            loss = tf.add_n([own_loss, *(tf.cast(loss, tf.float32) for loss in extra)])
            minimised = loss if scale is None else loss * scale
        gradient = tape.gradient(minimised, params, unconnected_gradients="zero")
        if scale is not None:
            gradient /= scale
        count = tf.cast(tf.shape(labels)[0], tf.float32)
        tail = tf.stack([loss, tf.reduce_sum(correct(outputs, labels)), count])
        return tf.concat([gradient, new_stats, tail, signals], 0)

    return opaque(replica_step)


def _build_apply(experiment: Experiment, layout: StateLayout, template: Template) -> Update:
    optimizer, sizes = experiment.optimizer, layout.sizes()
    scaled = loss_scale.is_scaled(experiment)
    build = build_grouped_update if has_groups(experiment) else build_update
    update = build(optimizer, layout.parts["params"], experiment.average)

    def apply(vectors: Vectors, mean: tf.Tensor, rates: Rates[tf.Tensor]) -> Vectors:
        gradient, moving, _ = tf.split(mean, [sizes["params"], template.moving_size(), len(Tail)])
        stats = template.merge(vectors["stats"], moving)
        new = {**update(vectors, gradient, rates), "stats": stats}
        if experiment.average.decay:
            old = vectors[AVERAGED_STATS]
            new[AVERAGED_STATS] = template.keep_fixed(
                old, average_of_stats(experiment, old, stats, rates)
            )
        return loss_scale.finish_step(vectors, new, gradient) if scaled else new

    return opaque(apply)


def _build_examine(
    experiment: Experiment, template: Template, batch_of: Callable[[tf.Tensor], Batch], views: Views
) -> Callable[..., tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    def examine(
        params: tf.Tensor, stats: tf.Tensor, number: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        batch = batch_of(number)

        def call(images: tf.Tensor) -> tf.Tensor:
            return template.call(params, stats, images, training=False)[0]

        outputs = mean_over_views(call, batch.images, views)
        loss = cross_entropy(experiment, outputs, batch.targets)
        among_five = tf.cast(
            tf.math.in_top_k(batch.labels, outputs, min(5, outputs.shape[-1])), tf.float32
        )
        sums = [
            tf.reduce_sum(v * batch.weights)
            for v in (loss, correct(outputs, batch.labels), among_five, tf.ones_like(loss))
        ]
        probabilities = tf.nn.softmax(outputs) if experiment.model.outputs == "logits" else outputs
        single = [tf.cast(values, tf.float32) for values in (batch.labels, tf.argmax(outputs, -1))]
        row = tf.concat([tf.stack(sums), *single, tf.reduce_max(probabilities, -1)], 0)
        return row, outputs, batch.labels

    return examine
