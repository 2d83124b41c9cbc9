"""The object-store engine: actors of a Ray cluster compute the replicas, and their sums meet as objects in Ray's object store.

Every actor holds the whole state and its step. A round is one call of each actor: it finishes the round before with the pieces of
its mean, then computes its own replicas' sum. Two actors read each other's whole sums; more of them first add up a shard each.
The driver, a worker process like any other, only hands on references, which it owns; it never holds one vector per actor.

When an actor is lost, the highest step among the survivors counts: they take that state and go on, each with more replicas, until
another actor has been started and joins them. This file imports no TensorFlow before an actor has made its settings.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError

from paceline.config.dataclass_json import differences
from paceline.config.job import Job
from paceline.core.evaluation import evaluate_splits
from paceline.core.metrics import SIGNALS, TAIL, Metrics, block_metrics, tail_scale
from paceline.core.state import State, evaluated_vector
from paceline.errors import UserError
from paceline.worker import devices

if TYPE_CHECKING:
    from paceline.core.replica import Core

ROUNDS_AHEAD = 2  # rounds whose calls are on their way, so that no actor waits for the driver
CONNECT_S = 8.0
PLACED_S = (
    10.0  # an actor that Ray has not placed by then may come later; the others begin without it
)
LOOK_EVERY_S = 10.0
ANSWER_S = 30.0  # within which a living actor says how far it is, also while it computes


def open_engine(job: Job, wants_stop: Callable[[], bool]) -> tuple[Core, ObjectStoreEngine]:
    """Connect, have the actors started, build the core meanwhile, and begin with the actors that found a place."""
    connect(job)
    crew = Crew(job)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the driver computes nothing
    from paceline.worker.build import build
    from paceline.worker.fingerprint import fingerprint

    core = build(job)
    crew.meet(fingerprint(job, core))
    return core, ObjectStoreEngine(job, core, crew, wants_stop)


def connect(job: Job) -> None:
    """To the cluster of the flag or of RAY_ADDRESS, or to one that is started here and ends with this process."""
    address = job.place.ray.address or os.environ.get("RAY_ADDRESS", "")
    _check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own: dict[str, Any] = {"address": address}
    if not address or address == "local":
        cores = max(
            len(os.sched_getaffinity(0)), -(-job.place.workers * job.place.ray.cpus_per_worker // 1)
        )
        own = {"address": "local", "num_cpus": int(cores), "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)  # ray.init puts its own in this place
    try:
        ray.init(**own, log_to_driver=False, logging_level="ERROR", namespace="paceline")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"cannot use the Ray cluster at {address or 'this machine'}: {reason}; does its head listen there, and does it take this "
            "token (RAY_AUTH_MODE, RAY_AUTH_TOKEN)?"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)


def _check_address(address: str) -> None:
    """Quickly, where Ray itself would wait for minutes."""
    if "://" in address:
        raise UserError(
            f"ray.address is {address!r}; give host:port of the cluster's head (usually port 6379), or auto"
        )
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise UserError(
            f"there is no Ray cluster at {address} ({error}); start one there with `ray start --head`, or leave --ray.address and "
            "RAY_ADDRESS out to have one started here"
        ) from error


def resources_of(job: Job) -> dict[str, float]:
    """What Ray reserves for a worker. Some node must have that; workers beyond what is there wait for nodes to come."""
    given, total = job.place.ray, ray.cluster_resources()
    gpus = (
        given.gpus_per_worker
        if given.gpus_per_worker >= 0
        else float(bool(total.get("GPU")) and job.place.devices != "cpu")
    )
    wanted = {"num_cpus": given.cpus_per_worker, "num_gpus": gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(
        node.get("CPU", 0) >= given.cpus_per_worker and node.get("GPU", 0) >= gpus for node in nodes
    ):
        there = "; ".join(
            f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes[:8]
        )
        raise UserError(
            f"a worker needs {needs(wanted)}, but no node of the Ray cluster has them (there are: {there}); "
            "give a smaller --ray.cpus-per-worker or --ray.gpus-per-worker"
        )
    return wanted


def needs(resources: dict[str, float]) -> str:
    return f"{resources['num_cpus']:g} CPUs and {resources['num_gpus']:g} GPUs"


class Actor:
    """A process somewhere in the cluster that holds the whole state and computes some of the replicas.

    Calls of an earlier `attempt` than the last `load` are refused: they come from before a failure. What must be answered while
    the actor computes is in the concurrency group `control`.
    """

    def __init__(self, job: dict[str, Any], folder: str) -> None:
        self._job, self._attempt = Job.from_json(job), 0
        with contextlib.suppress(
            OSError
        ):  # relative paths mean the same as for the driver, where its folder can be seen
            os.chdir(folder)
        self._state: tuple[int, dict[str, Any]] = (
            -1,
            {},
        )  # one tuple, because it is read while the next one is made

    def build(self) -> dict[str, Any]:
        """Data, model and functions; what decides the bits is answered."""
        devices.import_tensorflow(self._job)
        import tensorflow as tf

        from paceline.core.rounds import build_rounds
        from paceline.worker.build import build
        from paceline.worker.fingerprint import fingerprint

        try:
            devices.set_up(self._job)
            self._core = build(self._job)
        except UserError as error:
            raise UserError(f"on {socket.gethostname()}: {error}") from None
        self._lanes = devices.side_by_side(self._job)
        self._rounds = build_rounds(self._core, self._lanes)
        self._finish = tf.function(self._rounds.finish, autograph=False)
        self._computes = dict[int, Callable[..., Any]]()
        self._evaluates = dict[str, Callable[..., Any]]()
        return fingerprint(self._job, self._core)

    @ray.method(concurrency_group="control")
    def where(self) -> str:
        return socket.gethostname()

    @ray.method(concurrency_group="control")
    def step(self) -> int:
        return self._state[0]

    @ray.method(concurrency_group="control", num_returns=2)
    def state(self) -> tuple[int, tuple[int, dict[str, np.ndarray]]]:
        """The step by itself too, for who only hands the state on."""
        step, vectors = self._state
        return step, (step, {name: np.asarray(vector) for name, vector in vectors.items()})

    def load(
        self, attempt: int, state: tuple[int, dict[str, np.ndarray]], index: int, workers: int
    ) -> None:
        """Go on from this state as worker `index` of `workers`."""
        import tensorflow as tf

        self._attempt, self._shards = attempt, num_shards(workers)
        self._count = self._job.experiment.replicas // workers
        self._first_replica = tf.constant(index * self._count, tf.int64)
        # copies, because the arrays are views of an object in the store
        self._take(
            state[0], {name: tf.constant(np.array(vector)) for name, vector in state[1].items()}
        )

    def advance(
        self,
        attempt: int,
        before: tuple[int, int] | None,
        now: tuple[int, int],
        *pieces: np.ndarray,
    ) -> list[np.ndarray]:
        """Finish the round before, compute the round of steps [first, last): the shards of this worker's sum, and its tails."""
        self.finish(attempt, before, *pieces)
        first, last = now
        step, vectors = self._state
        if step != first:
            raise RuntimeError(f"the state is of step {step}, the round begins at {first}")
        import tensorflow as tf

        bounds = tf.constant(first, tf.int64), tf.constant(last, tf.int64)
        with _explained():
            total = self._compute()(
                vectors, *bounds, self._table(first, last), self._first_replica
            ).numpy()
        return [*np.array_split(total, self._shards), total[-self._num_tails() :].copy()]

    def reduce(self, attempt: int, *pieces: np.ndarray) -> np.ndarray:
        """The mean of a shard over all replicas."""
        self._check(attempt)
        return mean(pieces, self._job.experiment.replicas)

    def finish(self, attempt: int, before: tuple[int, int] | None, *pieces: np.ndarray) -> None:
        """The state after the round `before`, from the sums of all workers, or from the shards of their mean."""
        self._check(attempt)
        if before is None:
            return
        import tensorflow as tf

        whole = (
            mean(pieces, self._job.experiment.replicas)
            if self._shards == 1
            else np.concatenate(pieces)
        )
        vectors, _ = self._finish(self._state[1], tf.constant(whole), self._table(*before))
        self._take(before[1], vectors)

    def evaluate(self, attempt: int, split: str, start: int, stop: int) -> np.ndarray:
        """The rows of evaluation batches [start, stop)."""
        self._check(attempt)
        import tensorflow as tf

        if split not in self._evaluates:

            def turn(params: tf.Tensor, stats: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
                return self._core.evaluate_batches(split, params, stats, first, self._lanes)

            self._evaluates[split] = tf.function(turn, autograph=False)
        vectors, turns = self._state[1], range(start, stop, self._lanes)
        params, stats = vectors[evaluated_vector(vectors)], vectors["stats"]
        with _explained():
            rows = [
                self._evaluates[split](params, stats, tf.constant(first, tf.int64)).numpy()
                for first in turns
            ]
        return np.concatenate(rows)[: stop - start]

    def _compute(self) -> Callable[..., Any]:
        """The sum over this worker's replicas, compiled once for each number of them."""
        import tensorflow as tf

        from paceline.core.tree import tree_sum

        count, signals = self._count, tf.zeros([len(SIGNALS)])
        if count not in self._computes:

            def compute(
                vectors: Any,
                first: tf.Tensor,
                last: tf.Tensor,
                table: tf.Tensor,
                first_replica: tf.Tensor,
            ) -> tf.Tensor:
                return tree_sum(
                    self._rounds.compute(vectors, first, last, table, signals, first_replica, count)
                )

            self._computes[count] = tf.function(compute, autograph=False)
        return self._computes[count]

    def _table(self, first: int, last: int) -> Any:
        """The rates of a round; a short one at the end is filled up, lest everything be compiled again."""
        import tensorflow as tf

        from paceline.core.rounds import rates_of

        table = rates_of(self._core, first, last)
        return tf.constant(np.pad(table, ((0, self._core.plan.round_steps - len(table)), (0, 0))))

    def _num_tails(self) -> int:
        return len(TAIL) * self._core.plan.round_steps

    def _check(self, attempt: int) -> None:
        if attempt != self._attempt:
            raise RuntimeError(f"a call of attempt {attempt}, but this is attempt {self._attempt}")

    def _take(self, step: int, vectors: dict[str, Any]) -> None:
        self._state = step, vectors


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """What goes wrong in TensorFlow as an error that can travel, and where it is known what to do, as that."""
    try:
        yield
    except Exception as error:
        from paceline.data.sources.tfrecord import explain

        reason = (str(error).strip().splitlines() or [""])[0]
        known = explain(error) or RuntimeError(f"{type(error).__name__}: {reason}")
        raise type(known)(f"on {socket.gethostname()}: {known}") from None


def num_shards(workers: int) -> int:
    """Two workers read each other's sums, which is one hop and moves no more; for more of them it would."""
    return 1 if workers <= 2 else workers


def tree(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """The sum in the order of `training.tree`; float32 additions give the same bits in NumPy and in TensorFlow."""
    half = len(pieces) // 2
    return pieces[0] if len(pieces) == 1 else tree(pieces[:half]) + tree(pieces[half:])


def mean(sums: Sequence[np.ndarray], replicas: int) -> np.ndarray:
    total = tree(sums)
    return np.divide(total, np.float32(replicas), out=total if total.flags.writeable else None)


class Crew:
    """The actors: those that are ready, and those that wait for resources or still build their core."""

    def __init__(self, job: Job) -> None:
        self._job, self._wanted = job, job.place.workers
        self._resources = resources_of(job)
        self._waiting = dict[
            Any, tuple[Any, Any]
        ]()  # what `build` will answer -> actor, what `where` will answer
        self._fingerprint, self._own = dict[str, Any](), dict[str, Any]()
        self._died: RayError | None = None  # the last actor that did not get as far as being ready
        self.ready = list[Any]()
        self.hosts = dict[Any, str]()
        self.recruit()

    def recruit(self) -> None:
        """Ask Ray for the actors that are missing."""
        kind = ray.remote(**self._resources, max_restarts=0, concurrency_groups={"control": 1})(
            Actor
        )
        for _ in range(self._wanted - len(self.ready) - len(self._waiting)):
            actor = kind.remote(self._job.to_json(), os.getcwd())
            self._waiting[actor.build.remote()] = actor, actor.where.remote()

    def meet(self, own: dict[str, Any]) -> None:
        """Wait for the first actors: all of them, or those that Ray could place. `own` is the driver's fingerprint."""
        self._own, began = own, time.monotonic()
        while self._waiting and time.monotonic() - began < 0.9 * self._job.place.start_timeout:
            if refused := self.take_in(0.2):
                raise UserError(refused[0])
            placed, _ = _wait([where for _, where in self._waiting.values()], 0.0)
            if self.ready and not placed and time.monotonic() - began > PLACED_S:
                return
        if self._died and not self.ready:
            raise self._died
        if not self.ready:
            raise UserError(
                f"no worker got {needs(self._resources)} from the Ray cluster within {time.monotonic() - began:.0f} s; "
                "free some, ask for less, or give a longer --start-timeout"
            )

    def take_in(self, timeout_s: float = 0.0) -> list[str]:
        """Welcome the actors that have become ready; answer why others cannot take part, who are not asked for again."""
        done, _ = _wait(list(self._waiting), timeout_s)
        refused = []
        for ref in done:
            actor, where = self._waiting.pop(ref)
            try:
                fingerprint, self.hosts[actor] = ray.get([ref, where])
                self._compare(self.hosts[actor], fingerprint)
                self.ready.append(actor)
            except UserError as error:
                refused.append(str(getattr(error, "cause", error)))
                ray.kill(actor)
                self._wanted -= 1
            except RayError as error:  # the next `recruit` asks for another
                self._died = error
        return refused

    def survivors(self) -> dict[Any, int]:
        """Who answers, and how far each is; who does not is let go."""
        asked = {actor.step.remote(): actor for actor in self.ready}
        done, silent = _wait(list(asked), ANSWER_S)
        for ref in silent:
            ray.kill(asked[ref])
        steps = dict[Any, int]()
        for ref in done:
            with contextlib.suppress(RayError):
                steps[asked[ref]] = ray.get(ref)
        self.ready = [actor for actor in self.ready if actor in steps]
        return steps

    def team(self) -> list[Any]:
        """As many of the ready ones as can share the replicas."""
        usable = min(len(self.ready), self._wanted)
        return self.ready[: 1 << (usable.bit_length() - 1)] if usable else []

    def close(self) -> None:
        for actor in [*self.ready, *(actor for actor, _ in self._waiting.values())]:
            ray.kill(actor)

    def _compare(self, host: str, fingerprint: dict[str, Any]) -> None:
        """Data and libraries as the driver has them; the kind of CPU as the first actor's."""
        self._fingerprint = self._fingerprint or self._own | {"cpu": fingerprint["cpu"]}
        if different := differences(self._fingerprint, fingerprint):
            raise UserError(
                f"the worker on {host} differs from the others: {', '.join(different[:4])}; "
                "all workers need the same experiment, data, libraries and kind of CPU"
            )


def _wait(references: list[Any], timeout_s: float) -> tuple[list[Any], list[Any]]:
    """Which are there after that time at the latest, and which are not."""
    return (
        ray.wait(references, num_returns=len(references), timeout=timeout_s)
        if references
        else ([], [])
    )


class ObjectStoreEngine:
    """Hands references from call to call, and starts again from the survivors' state when an actor is lost."""

    def __init__(
        self, job: Job, core: Core, crew: Crew, wants_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._job, self._core, self._crew, self._wants_stop = job, core, crew, wants_stop
        self._team, self._attempt, self._step, self._failures = list[Any](), 0, 0, 0
        self._pending: deque[tuple[int, int, list[Any]]] = deque()
        self._tails, self._events, self._compiled = (
            dict[int, np.ndarray](),
            list[str](),
            set[tuple[Any, int]](),
        )

    def load(self, state: State) -> State:
        reference = ray.put((state.step, state.vectors))
        self._form(reference)
        self._step = state.step
        if len(self._team) < self._job.place.workers:
            self._tell(
                f"{len(self._team)} of {self._job.place.workers} workers found a place on the Ray cluster; others may join"
            )
        return state

    def state(self) -> State:
        step, vectors = self._surely(lambda: self._get([self._team[0].state.remote()[1]])[0])
        assert step == self._step
        return State(step, {name: np.array(vectors[name]) for name in self._core.layout.parts})

    def advance(self, start: int, stop: int) -> Metrics:
        from paceline.core.rounds import rates_of

        began = time.monotonic()
        self._let_others_join()
        self._tails.clear()
        while True:
            try:
                self._step = self._train(self._step, stop)
                break
            except RayError as error:
                self._step = self._recover(error)
        tails = np.concatenate([self._tails[first] for first in sorted(self._tails)])
        events, self._events = self._events, []
        table = rates_of(self._core, start, self._step)
        metrics = block_metrics(
            self._core, self._step, tails, table, (time.monotonic() - began) / len(tails)
        )
        return metrics | ({"events": events} if events else {})

    def _let_others_join(self) -> None:
        for refused in self._crew.take_in():
            self._tell(f"a worker cannot join: {refused}")
        self._crew.recruit()
        if len(self._crew.team()) > len(self._team):
            self._tell(f"going on with {len(self._crew.team())} workers from step {self._step}")
            self._surely(lambda: self._form(self._team[0].state.remote()[1]))

    def evaluate(self, final: bool) -> Metrics:
        def rows_of(split: str, count: int) -> np.ndarray:
            return np.concatenate(self._surely(partial(self._rows, split, count)))

        return evaluate_splits(self._core, final, rows_of)

    def close(self) -> None:
        self._crew.close()
        ray.shutdown()

    def _rows(self, split: str, count: int) -> list[np.ndarray]:
        """Whole batches are dealt to the workers, and come back in their order."""
        bounds = np.linspace(0, count, len(self._team) + 1).astype(int).tolist()
        shares = [
            (actor, *share)
            for actor, *share in zip(self._team, bounds, bounds[1:], strict=False)
            if share[0] < share[1]
        ]
        return self._get(
            [
                actor.evaluate.remote(self._attempt, split, first, last)
                for actor, first, last in shares
            ]
        )

    def _train(self, first: int, stop: int) -> int:
        """Rounds from `first` on; the step reached, at which every actor has the state."""
        team, length, before, pieces = self._team, self._core.plan.round_steps, None, list[Any]()
        shards, start = num_shards(len(team)), first
        calls = [actor.advance.options(num_returns=shards + 1) for actor in team]
        while True:
            while (
                first < stop
                and len(self._pending) < ROUNDS_AHEAD
                and not (first > start and self._wants_stop())
            ):
                now = first, min(first + length, stop)
                sums = [call.remote(self._attempt, before, now, *pieces) for call in calls]
                self._pending.append((*now, [row[-1] for row in sums]))
                pieces = [row[0] for row in sums]
                if shards > 1:
                    columns = zip(*(row[:-1] for row in sums), strict=True)
                    pieces = [
                        actor.reduce.remote(self._attempt, *c)
                        for actor, c in zip(team, columns, strict=True)
                    ]
                before, first = now, now[1]
            if not self._pending:
                break
            self._take_tails()
        self._get([actor.finish.remote(self._attempt, before, *pieces) for actor in team])
        return first

    def _take_tails(self) -> None:
        """Read what the oldest round on its way says of itself; it is forgotten only afterwards."""
        first, last, references = self._pending[0]
        rows = mean(self._get(references), self._core.experiment.replicas).reshape(
            self._core.plan.round_steps, -1
        )
        self._tails[first] = rows[: last - first] * tail_scale(self._core.experiment.replicas)
        self._pending.popleft()
        self._failures = 0
        self._compiled.update((actor, len(self._team)) for actor in self._team)

    def _form(self, state: Any) -> None:
        """Give every actor of the team its part and the same state. What was called before is void."""
        self._attempt += 1
        self._team = self._crew.team()
        share = len(self._team)
        self._get(
            [
                actor.load.remote(self._attempt, state, index, share)
                for index, actor in enumerate(self._team)
            ]
        )

    def _recover(self, error: RayError) -> int:
        """The step from which the survivors go on."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            raise cause
        reason = (str(cause or error).strip().splitlines() or [type(error).__name__])[0]
        self._failures += 1
        before = set(self._team)
        steps = self._crew.survivors()
        if (
            max(steps.values(), default=-1) < self._step
            or self._failures > self._job.place.max_restarts
        ):
            raise error  # none of them has the state any more, or it does not help: from the last checkpoint
        self._crew.recruit()
        gone = ", ".join(sorted(self._crew.hosts[actor] for actor in before - set(steps))) or "none"
        try:
            reached, state = max(steps, key=lambda actor: steps[actor]).state.remote()
            (step,) = self._get(
                [reached]
            )  # of that very state: it may have got on since it was asked
            self._form(state)
            self._pending = deque(row for row in self._pending if row[1] <= step)
            while self._pending:
                self._take_tails()
        except RayError as another:
            return self._recover(another)
        finally:
            self._pending.clear()
        self._tell(
            f"lost a worker ({reason}; gone on: {gone}); going on with {len(self._team)} of them from step {step}"
        )
        return step

    def _surely(self, call: Callable[[], Any]) -> Any:
        """The answer of a call that changes nothing, asked again of the survivors where an actor is lost."""
        while True:
            try:
                return call()
            except RayError as error:
                self._recover(error)

    def _get(self, references: list[Any]) -> list[Any]:
        """The answers of the team. An actor that has fallen silent is let go, and the wait ends where nothing comes at all."""
        place, compiled = (
            self._job.place,
            {(actor, len(self._team)) for actor in self._team} <= self._compiled,
        )
        began, limit_s = time.monotonic(), place.stall_timeout if compiled else place.start_timeout
        while True:
            try:
                return ray.get(references, timeout=min(LOOK_EVERY_S, limit_s / 4))
            except GetTimeoutError:
                if time.monotonic() - began > 0.9 * limit_s:
                    raise
            ray.get(_wait(references, 0.0)[0])  # raises an error that is there already
            self._crew.survivors()

    def _tell(self, event: str) -> None:
        self._events.append(event)
