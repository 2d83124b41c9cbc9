"""The exchange alone: two workers repeatedly compute the mean of their vectors.

python -m benchmarks.contender_exchange gloo|sockets|exact|ring SIZE

An exchange counts as an image. `sockets`, `exact` and `ring` are algorithms of `contender_scale`,
between two processes.
"""

import os
import subprocess
import sys
import tempfile

from benchmarks.protocol import Channel, Clock, serve, serve_processes

WORKERS = 2


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
    how, size = sys.argv[1], int(sys.argv[2])
    if how in ("sockets", "exact", "ring") and len(sys.argv) > 3:
        run_collective(how, size, int(sys.argv[3]), sys.argv[4:])
    elif how in ("sockets", "exact", "ring"):
        start_collective(how, sys.argv[2])
    elif len(sys.argv) > 3:
        run_gloo(size, 1, sys.argv[4])
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
            run_gloo(size, 0, f"{folder}/ranks")
            other.wait()


if __name__ == "__main__":
    main()
