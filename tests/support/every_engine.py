"""Trains experiments with every engine, one after the other, in processes that stay. Not a test:

    python tests/support/every_engine.py [ENGINE...]

reads an experiment in JSON from each line, and prints a line of JSON: by engine, the digest of the
last state and the losses that each of its processes found. All processes are forked from one that
has imported TensorFlow; only Ray's actors are started by Ray.
"""

import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(str(Path(__file__).parents[2]))  # for `benchmarks`

import tensorflow as tf
from keras.src.utils.naming import reset_uids

from forked_workers import connect
from helpers import free_addresses
from late_results import start_cluster
from paceline.build import build_core
from paceline.engines.collective import CollectiveEngine
from paceline.engines.peers import Peers
from paceline.engines_more.parameter_server.synchronous import SynchronousEngine
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.job import Cluster, Job, Place
from paceline.maths.replica import Core

TIMEOUT_S = 300  # of all engines for one experiment

Open = Callable[[Job, Core], Any]
"""(job, its core) -> an engine of this process"""


def train(open_engine: Open, job: Job) -> list[Any]:
    """Return the digest and the losses of an experiment."""
    reset_uids()
    gc.collect()
    core = build_core(job)
    engine = open_engine(job, core)
    engine.load(core.initial_state())
    losses = engine.advance(0, core.plan.total_steps).losses.tolist()
    return [engine.state().sha256(), losses]


def alone() -> Open:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return lambda job, core: CollectiveEngine(core, strategy, 1)


def one_of(addresses: list[str], index: int, neighbors: Peers | None) -> Open:
    """A worker of several. With neighbors they use sockets, else TensorFlow's network."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}),
        task_type="worker",
        task_id=index,
        rpc_layer="grpc",
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    return lambda job, core: CollectiveEngine(core, strategy, 1, exchange=neighbors)


def parameter_servers() -> Open:
    """The chief, two workers and two parameter servers."""
    cluster, servers = start_cluster(workers=2)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.tasks), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)

    def open_engine(job: Job, core: Core) -> SynchronousEngine:
        assert servers
        used = cluster.addresses[: 1 + min(2, core.experiment.replicas)]
        own = Cluster(used, ps=cluster.ps)
        return SynchronousEngine(core, own, strategy, 1, lambda: False)

    return open_engine


def ray_actors() -> Open:
    """The driver of two actors, which build a new core for each experiment."""
    import ray

    from paceline.engines_more.ray_actors.actor import Actor
    from paceline.engines_more.ray_actors.crew import connect_to_ray
    from paceline.engines_more.ray_actors.ray_engine import RayEngine

    class Reused(Actor):
        def build_again(self, job: Job) -> None:
            self._job, self._attempt = job, 0
            gc.collect()
            self.build()

    first = Job(Experiment(), Place(on="ray", workers=2, cores=1))
    connect_to_ray(first)
    kind = ray.remote(num_cpus=1, concurrency_groups={"control": 1})(Reused)
    actors = [kind.remote(first, os.getcwd()) for _ in range(2)]

    def open_engine(job: Job, core: Core) -> RayEngine:
        used = actors[: min(2, core.experiment.replicas)]
        ray.get([actor.build_again.remote(job) for actor in used])
        crew = SimpleNamespace(
            team=lambda: used, take_in=list, recruit=lambda: None, survivors=dict
        )
        return RayEngine(job, core, crew)

    return open_engine


class Process:
    """A fork that trains what it is asked to."""

    def __init__(self, place: Place, build: Callable[[], Open]) -> None:
        self._place = place
        # workers and parameter servers of one process share its threads, and wait in them
        self._threads = 16 if place.ps else 2
        asks, self._ask = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._ask)
            self._serve(build, asks, answers)

    def can(self, experiment: Experiment) -> bool:
        """Return whether the engine takes the experiment: parameter servers refuse some."""
        cluster = Cluster(ps=("of any address",) if self._place.ps else ())
        with suppress(UserError):
            return bool(Job(experiment, self._place, cluster=cluster).engine)
        return False

    def ask(self, line: str) -> None:
        os.write(self._ask, line.encode())

    def answer(self) -> Any:
        with os.fdopen(os.dup(self._answers)) as answers:
            return json.loads(answers.readline() or "null")

    def _serve(self, build: Callable[[], Open], asks: int, answers: int) -> None:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(self._threads)
            open_engine = build()
            for line in os.fdopen(asks):
                experiment = Experiment.from_json(json.loads(line))
                found = train(open_engine, Job(experiment, self._place))
                os.write(answers, f"{json.dumps(found)}\n".encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


def several(count: int) -> list[Process]:
    """Two workers share memory, more use the network."""
    addresses = free_addresses(count)
    shared = connect(count) if count == 2 else [None] * count
    return [
        Process(Place(workers=count, cores=1), partial(one_of, addresses, k, shared[k]))
        for k in range(count)
    ]


ENGINES: dict[str, Callable[[], list[Process]]] = {
    "one process": lambda: [Process(Place(cores=1), alone)],
    "2 workers": lambda: several(2),
    "3 workers": lambda: several(3),
    "parameter servers": lambda: [Process(Place(ps=2, cores=1), parameter_servers)],
    "ray": lambda: [Process(Place(on="ray", cores=1), ray_actors)],
}


def main(names: list[str]) -> None:
    processes = {name: ENGINES[name]() for name in names or ENGINES}
    everyone = [each for group in processes.values() for each in group]
    signal.signal(signal.SIGALRM, lambda *_: sys.exit("an engine does not answer"))
    try:
        for line in sys.stdin:
            signal.alarm(TIMEOUT_S)
            experiment = Experiment.from_json(json.loads(line))
            asked = {n: group for n, group in processes.items() if group[0].can(experiment)}
            for each in (each for group in asked.values() for each in group):
                each.ask(line)
            found = {name: [each.answer() for each in group] for name, group in asked.items()}
            print(json.dumps(found), flush=True)
            signal.alarm(0)
    finally:
        for each in everyone:
            os.kill(each.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
