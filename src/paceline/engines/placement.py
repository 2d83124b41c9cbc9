"""Who uses what: the GPUs, replicas and threads of each worker. Pure functions, no TensorFlow."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import UserError
from paceline.job import Job
from paceline.maths.sums import divided_tree


@dataclass(frozen=True)
class Share:
    """What one worker uses."""

    gpus: tuple[int, ...]
    """Numbers among the GPUs that it sees. Empty: it computes on the CPU."""
    replicas: int
    side_by_side: int
    """Replicas that run at a time on a device: one on a GPU."""
    threads: int
    """Operations that run at a time. With GPUs, all cores prepare batches."""
    unused: int = 0
    """GPUs of all workers together that no replica is for."""

    def __str__(self) -> str:
        if not self.gpus:
            return f"{self.side_by_side} side by side"
        numbers = ", ".join(map(str, self.gpus))
        return f"on GPU {numbers}: {self.replicas} of the replicas, {self.threads} threads for data"


def assign(
    hosts: Sequence[str],
    gpus: Mapping[str, int],
    cores: Mapping[str, int],
    replicas: int,
    threads_per_replica: int = 1,
    own_gpus: bool = False,
) -> list[Share]:
    """Return the share of each worker from the host of each, and the GPUs and cores of each host.

    All workers use the same number of GPUs, each for at least one replica. With `own_gpus`, no
    worker sees the GPUs of another one of its host.
    """
    workers, local = len(hosts), Counter(hosts)
    for host, count in local.items():
        if not own_gpus and 0 < gpus[host] < count:
            raise UserError(
                f"{count} workers of one host see {gpus[host]} GPUs; start {gpus[host]} there, "
                "give each worker its own CUDA_VISIBLE_DEVICES, or pass --devices cpu"
            )
    seen = [gpus[host] // (1 if own_gpus else local[host]) for host in hosts]
    num_gpus = min(*seen, replicas // workers)
    unused = sum(seen) - workers * num_gpus if min(seen) else 0
    spans = divided_tree(replicas, workers * max(1, num_gpus))
    shares = []
    for index, host in enumerate(hosts):
        first = 0 if own_gpus else seen[index] * list(hosts[:index]).count(host)
        devices = spans[index * max(1, num_gpus) :][: max(1, num_gpus)]
        count = devices[-1][-1][1] - devices[0][0][0]
        own_cores = max(1, cores[host] // local[host])
        at_a_time = max(1, min(own_cores // threads_per_replica, -(-replicas // workers)))
        threads = max(2, own_cores if num_gpus else at_a_time)
        numbers = tuple(range(first, first + num_gpus))
        shares.append(Share(numbers, count, 1 if num_gpus else at_a_time, threads, unused))
    return shares


def own_share(
    job: Job, gpus: int, cores: int, environment: Mapping[str, str], own_gpus: bool = False
) -> Share:
    """Return the share of this worker, if all hosts have as many GPUs and cores as this one, or
    with `own_gpus` all workers as many GPUs."""
    cluster, place = job.cluster, job.place
    leads = bool(cluster.ps and not cluster.chief_trains)
    hosts = [address.rpartition(":")[0] for address in cluster.addresses[leads:]]
    if place.kind.one_machine:
        hosts = ["here"] * place.workers
    elif not hosts:  # actors of Ray: each sees only what it got
        hosts = [str(number) for number in range(place.workers)]
    if place.cores:  # of each worker
        cores = place.cores * max(Counter(hosts).values())
    shares = assign(
        hosts,
        dict.fromkeys(hosts, gpus),
        dict.fromkeys(hosts, cores),
        job.experiment.replicas,
        job.experiment.threads_per_replica,
        own_gpus or (not place.kind.one_machine and _gives_own_gpus(place.on, environment)),
    )
    return shares[max(0, cluster.index - leads) if cluster.role == "worker" else 0]


def _gives_own_gpus(place: str, environment: Mapping[str, str]) -> bool:
    """Return whether the platform, or a person, gave each task GPUs that the others do not see."""
    if place == "slurm":  # which sets CUDA_VISIBLE_DEVICES in any case
        per_task = environment.get("SLURM_TRES_PER_TASK", "")
        return "SLURM_GPUS_PER_TASK" in environment or "gpu" in per_task
    return "CUDA_VISIBLE_DEVICES" in environment
