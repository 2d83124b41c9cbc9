"""Training on ten floats: the simulated engine, with the real tree of sums, plan and loop."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from paceline.engines.base import WantsStop, check_facts
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.plan import Plan, build_plan
from paceline.job import Job
from paceline.maths.metrics import (
    BlockResult,
    EvalResult,
    Examples,
    SplitResult,
    Tail,
    block_result,
    tail_scale,
)
from paceline.maths.state import State, StateLayout
from paceline.maths.sums import add_subtrees, divided_tree, mean_factor, subtree_sums, tree_sum
from paceline.messages import Start

from .network import Session
from .world import me, world

SIZE = 10
LAYOUT = StateLayout({"params": (("weights", (SIZE,)),)})
EXAMPLES = 64
NOBODY = Examples(*(np.zeros(0, np.int64) for _ in range(3)))


def first_params() -> np.ndarray:
    return np.arange(1, SIZE + 1, dtype=np.float32) / np.float32(7)


def replica_vector(params: np.ndarray, step: int, replica: int, replicas: int) -> np.ndarray:
    """Return a replica's vector of a step: gradient and tail. Sums of it depend on their order."""
    gradient = params * np.float32(0.3 + 0.1 * replica) + np.float32(1 / (3 + step + 7 * replica))
    tail = [gradient.sum(), 1, 2, 0, 0, *(step * (each == replica) for each in range(replicas))]
    return np.concatenate([gradient, np.array(tail, np.float32)])


def update(params: np.ndarray, total: np.ndarray, replicas: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the parameters after a step, and its tail."""
    mean = total * mean_factor(replicas)
    tail = mean[SIZE:] * tail_scale(replicas)
    return params - np.float32(0.05) * mean[:SIZE], tail


@cache
def undisturbed(replicas: int, steps: int) -> tuple[str, tuple[float, ...]]:
    """Return the digest and the losses of a run to which nothing happens."""
    params, losses = first_params(), []
    for step in range(steps):
        vectors = [replica_vector(params, step, replica, replicas) for replica in range(replicas)]
        params, tail = update(params, tree_sum(vectors, np.add), replicas)
        losses.append(float(tail[Tail.LOSS]))
    return State(steps, {"params": params}).sha256(), tuple(losses)


@dataclass(frozen=True)
class Template:
    kernels: str = "tensorflow"
    bits: str = "exact"


@dataclass(frozen=True)
class Source:
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Core:
    """What the chief and the loop use of `maths.replica.Core`."""

    experiment: Experiment
    plan: Plan
    layout: StateLayout = LAYOUT
    template: Template = Template()
    source: Source = Source()

    def initial_state(self) -> State:
        return State(0, {"params": first_params()})


def build_core(job: Job) -> Core:
    me().compute(world().chance.uniform(0.5, 3.0))
    if me().host in world().lacks:
        raise UserError("there is no folder data")
    return Core(job.experiment, build_plan(job.experiment, EXAMPLES, job.run.stop_at))


def start_message(job: Job, core: Core, first: int, who: str = "", lease: int = 0) -> Start:
    return Start(core.plan.total_steps, core.plan.steps_per_epoch, first, who, lease)


class SimulatedEngine:
    """As `engines.collective.CollectiveEngine`, which holds its state in each worker."""

    def __init__(self, core: Core, session: Session, rank: int, wants_stop: WantsStop) -> None:
        self._core, self._session, self._rank, self._wants_stop = core, session, rank, wants_stop
        self._size = len(session.members)
        self._held: State | None = None
        self._step, self._params = 0, first_params()
        self._tails = list[np.ndarray]()
        self._seconds = 0.0
        self._step_s = world().chance.uniform(0.2, 2.0)

    def check(self, facts: dict[str, Any]) -> None:
        chiefs, *others = self._session.gather(self._rank, facts)
        try:
            for index, row in enumerate(others, 1):
                check_facts(f"worker {index} differs from the chief", chiefs, row)
        finally:
            self.close()  # the others read these facts from this process

    def load(self, state: State) -> State:
        state = self._session.gather(self._rank, state)[0]
        self._step, self._params = state.step, state.vectors["params"]
        self._held = state
        return state

    def state(self) -> State:
        return State(self._step, {"params": self._params.copy()})

    def held(self) -> State | None:
        world().incomplete |= self._held is None
        return self._held

    def advance(self, start: int, stop: int) -> BlockResult:
        assert start == self._step, f"the engine is at {self._step}, the loop at {start}"
        began, self._tails = world().now, []
        asked = self._wants_stop()
        while self._step < stop:
            self._train_step(asked)
            if self._tails[-1][Tail.STOP]:
                break
        self._seconds = (world().now - began) / len(self._tails)
        tails = np.stack(self._tails)
        block = block_result(self._core, self._step, tails, max(self._seconds, 1e-3))
        return replace(block, seconds_per_step=max(1e-3, float(tails[-1, Tail.SECONDS])))

    def _train_step(self, asked: bool) -> None:
        replicas = self._core.experiment.replicas
        shares = divided_tree(replicas, self._size)
        spans = shares[self._rank]
        me().compute(self._step_s * world().chance.uniform(0.5, 1.5))
        vectors = [
            replica_vector(self._params, self._step, each, replicas)
            for each in range(spans[0][0], spans[-1][1])
        ]
        for vector in vectors:
            vector[SIZE + Tail.STOP], vector[SIZE + Tail.SECONDS] = asked, self._seconds
        sums = subtree_sums(vectors, spans, np.add)
        gathered = self._session.gather(self._rank, sums)
        found = {
            span: total
            for share, totals in zip(shares, gathered, strict=True)
            for span, total in zip(share, totals, strict=True)
        }
        total = add_subtrees((0, replicas), found, np.add)
        self._held = None  # while the state is written, there is no complete one
        world().pause(0.02)
        self._params, tail = update(self._params, total, replicas)
        self._step += 1
        self._tails.append(tail)
        self._session.progressed()
        kept = np.stack(self._tails)
        kept[:, Tail.STOP] = 0.0
        kept[:, Tail.SECONDS] = self._step_s
        self._held = State(self._step, {"params": self._params.copy()}, kept)

    def evaluate(self, final: bool) -> EvalResult:
        self._wants_stop()
        me().compute(world().chance.uniform(0.1, 2.0))
        self._session.gather(self._rank, None)
        self._session.progressed()
        loss = float(self._params.sum())
        return EvalResult({"test": SplitResult(loss, 0.5, 1.0, EXAMPLES, NOBODY)})

    def agree(self, own: bool) -> bool:
        return bool(self._session.gather(self._rank, own)[0])

    def close(self) -> None:
        self._session.gather(self._rank, None)
