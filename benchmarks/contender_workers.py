"""Several workers of Paceline as one contender.

    python -m benchmarks.contender_workers DEPTH DATA_FOLDER ROUND_STEPS HOST ADDRESS ...

Every turn goes to all workers and ends when all have ended. There is a HOST and an ADDRESS for each
worker. HOST is the network namespace of the worker, or NETWORK for that of this process. If all are
SHARED, they have sockets, as those of `paceline train --workers N`.
"""

import sys

from benchmarks.neighbors import serve_neighbors
from benchmarks.protocol import serve_processes

SHARED, NETWORK = "-", "+"


def main() -> None:
    hosts, addresses = sys.argv[4::2], sys.argv[5::2]
    worker = (sys.executable, "-m", "benchmarks.contender_paceline", *sys.argv[1:4])
    commands = []
    for index, host in enumerate(hosts):
        inside = () if host in (SHARED, NETWORK) else ("ip", "netns", "exec", host)
        commands.append([*inside, *worker, str(index), *addresses])
    serve_all = serve_neighbors if set(hosts) == {SHARED} else serve_processes
    serve_all(commands, lambda images: images[0])  # each reports those of the whole batch


if __name__ == "__main__":
    main()
