"""What connects the workers of one machine: shared memory, and a socket for each pair.

`engines.shared_memory` uses it. Workers inherit both as open files, so no other program can open
them by a name, and nothing remains when the last worker ends.
"""

from __future__ import annotations

import os
import socket
from itertools import combinations

MOST_WORKERS = 16
"""More workers would need too many open files; they exchange vectors over the network."""


def connect_neighbors(workers: int) -> list[list[int]]:
    """Return the open files of each worker: the shared memory, and a socket to each other worker.

    They are for `LocalWorker`, which closes them here once the worker has them: the others must
    notice when it ends.
    """
    memory = os.memfd_create("paceline")
    files = [[os.dup(memory)] for _ in range(workers)]
    os.close(memory)
    for low, high in combinations(range(workers), 2):
        one, other = socket.socketpair()
        files[low].append(one.detach())
        files[high].append(other.detach())
    return files
