"""Workers on this machine: one process or several."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations

from paceline.job import Cluster, Job
from paceline.messages import Send
from paceline.run_folder.folder import RunFolder
from paceline.supervise.interface import OpenPlace
from paceline.supervise.process import LocalWorker

MOST_NEIGHBORS = 16
"""More workers would need too many open files; they exchange vectors over the network."""


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """Make the run folder, and remove it if the command fails before it is used."""
    with RunFolder(job.run.run_dir).begun():
        yield OpenPlace(job, partial(_prepare, job), listen)


@contextmanager
def _prepare(job: Job, count: int) -> Iterator[list[LocalWorker]]:
    """Yield the workers, the chief first; with parameter servers, it may be an extra process."""
    num_servers, leads = job.place.ps, job.place.chief_trains
    num_members = count + bool(num_servers and not leads)
    found = _free_addresses(num_members + num_servers) if num_members > 1 else ()
    addresses, ps = found[:num_members], found[num_members:]
    clusters = [Cluster(addresses, k, ps=ps, chief_trains=leads) for k in range(num_members)]
    clusters += [Cluster(addresses, k, "ps", ps, leads) for k in range(num_servers)]
    clusters = clusters[:1] if job.dry_run else clusters
    connects = 1 < len(clusters) <= MOST_NEIGHBORS and not ps
    connections = connect_neighbors(count) if connects else [[] for _ in clusters]
    place, run = job.place.with_workers(count), RunFolder(job.run.run_dir)
    yield [
        LocalWorker(replace(job, place=place, cluster=cluster), run.log(cluster.name), own)
        for cluster, own in zip(clusters, connections, strict=True)
    ]


def _free_addresses(count: int) -> tuple[str, ...]:
    """Return free ports of this machine. If one is taken before its use, all workers restart."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)
    for each in sockets:
        each.close()
    return addresses


def connect_neighbors(workers: int) -> list[list[int]]:
    """Return the open files of each worker: a socket to each other worker, for `engines.peers`.
    `LocalWorker` closes them here, so that the others notice a worker's end."""
    files: list[list[int]] = [[] for _ in range(workers)]
    for low, high in combinations(range(workers), 2):
        one, other = socket.socketpair()
        files[low].append(one.detach())
        files[high].append(other.detach())
    return files
