"""The exchange alone: two workers repeatedly compute the mean of their vectors.

python -m benchmarks.contender_exchange ray|gloo|sockets|exact|ring SIZE
python -m benchmarks.contender_exchange driver WORKERS SIZE

An exchange counts as an image. `driver` prints the peak memory of Ray's driver in bytes. `sockets`,
`exact` and `ring` are algorithms of `contender_scale`, between two processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.protocol import Channel, Clock, serve, serve_group, serve_processes

WORKERS = 2


class Exchanger:
    """An actor with the engine's methods that computes nothing: its vector is constant."""

    def __init__(self, size: int) -> None:
        self._vector = np.ones(size, np.float32)

    def load(self, attempt: int, state: Any, index: int, workers: int) -> None:
        from paceline.engines_more.object_store.actor import num_shards

        self._workers, self._shards = workers, num_shards(workers)

    def advance(self, attempt: int, before: Any, now: Any, *pieces: np.ndarray) -> list[np.ndarray]:
        self.finish(attempt, before, *pieces)
        rows = self._vector[None]  # one subtree
        return [*np.array_split(rows, self._shards, axis=1), np.zeros((1, 5), np.float32)]

    def reduce(self, attempt: int, *pieces: np.ndarray) -> np.ndarray:
        from paceline.engines_more.object_store.actor import mean

        return mean(pieces, self._workers)

    def finish(self, attempt: int, before: Any, *pieces: np.ndarray) -> None:
        if pieces:
            whole = self.reduce(attempt, *pieces) if self._shards == 1 else np.concatenate(pieces)
            assert whole.size == self._vector.size


def build_exchange(workers: int, size: int) -> Any:
    """Run the engine with actors that only exchange."""
    import ray

    from paceline.engines_more.object_store.object_store_engine import ObjectStoreEngine
    from paceline.experiment.recipes.table import get_recipe
    from paceline.job import Job, Place

    ray.init(
        address="local",
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    actors = [ray.remote(num_cpus=1)(Exchanger).remote(size) for _ in range(workers)]
    crew = SimpleNamespace(team=lambda: actors, survivors=lambda: dict.fromkeys(actors, 0))
    plan, experiment = SimpleNamespace(round_steps=1), SimpleNamespace(replicas=workers)
    engine = ObjectStoreEngine(
        Job(get_recipe("smoke"), Place(on="ray")),
        SimpleNamespace(plan=plan, experiment=experiment),
        crew,
    )
    engine._form(None)
    return engine


def run_ray(size: int) -> None:
    engine = build_exchange(WORKERS, size)

    def exchange(steps: int) -> float:
        engine._train(0, steps)
        return steps

    serve_group(exchange)


def run_driver(workers: int, size: int) -> None:
    engine = build_exchange(workers, size)
    engine._train(0, 20)
    with open("/proc/self/status") as file:
        (peak,) = [line.split()[1] for line in file if line.startswith("VmHWM:")]
    print(int(peak) * 1024)


def start_collective(algorithm: str, size: str) -> None:
    # here: the Python of torch has no Paceline
    from benchmarks.neighbors import free_addresses, serve_neighbors

    module = [sys.executable, "-m", "benchmarks.contender_exchange", algorithm, size]
    addresses = free_addresses(WORKERS)
    commands = [[*module, str(index), *addresses] for index in range(WORKERS)]
    serve_all = serve_neighbors if algorithm == "sockets" else serve_processes
    serve_all(commands, lambda images: images[0])


def run_collective(algorithm: str, size: int, index: int, addresses: list[str]) -> None:
    from benchmarks.contender_scale import Case, build_turn, connect

    case = Case([""] * WORKERS, addresses, WORKERS, size, [algorithm], 1, 1)
    turn = build_turn(connect(case, index), case, index, algorithm)

    def exchange(steps: int) -> float:
        turn(steps)
        return steps

    serve(exchange)


def run_gloo(size: int, rank: int = 0, meeting_file: str = "") -> None:
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting_file}", rank=rank, world_size=WORKERS
    )
    vector, channel = torch.ones(size), Channel() if rank == 0 else None
    while True:
        steps = torch.tensor(channel.next_turn() or 0) if channel else torch.tensor(0)
        clock = Clock.start()
        torch.distributed.broadcast(steps, 0)
        if steps == 0:
            break
        for _ in range(int(steps)):
            torch.distributed.all_reduce(vector)
            vector /= WORKERS
        cpu_s = torch.tensor(clock.read()[1], dtype=torch.float64)
        torch.distributed.all_reduce(cpu_s)
        if channel:
            channel.report(int(steps), clock.read()[0], float(cpu_s))
    torch.distributed.destroy_process_group()


def main() -> None:
    how, numbers = sys.argv[1], [int(number) for number in sys.argv[2:4]]
    if how == "ray":
        run_ray(*numbers)
    elif how == "driver":
        run_driver(*numbers)
    elif how in ("sockets", "exact", "ring") and len(sys.argv) > 3:
        run_collective(how, *numbers, sys.argv[4:])
    elif how in ("sockets", "exact", "ring"):
        start_collective(how, sys.argv[2])
    elif len(sys.argv) > 3:
        run_gloo(numbers[0], 1, sys.argv[4])
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "benchmarks.contender_exchange",
                "gloo",
                sys.argv[2],
                "1",
                f"{folder}/ranks",
            ]
            other = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            run_gloo(numbers[0], 0, f"{folder}/ranks")
            other.wait()


if __name__ == "__main__":
    main()
