"""A job: the experiment, the place where it runs, the processes of the run, and the run folder.

This is what crosses processes. It is frozen and converts to JSON, like the experiment.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json, Range, check_fields, from_json
from paceline.requests import DescribeRequest, Request

PlaceName = Literal["auto", "local", "tf_config", "slurm", "kubernetes", "ray", "spark"]
TrackerName = Literal["mlflow", "wandb"]
"""What `paceline.extras.tracking.trackers` has clients for."""
Seconds = Annotated[float, Range(0, 366 * 24 * 3600, excludes_lowest=True)]


@dataclass(frozen=True)
class PlaceKind:
    """What is special about a place."""

    module: str
    """Its `open_place(job, listen)` finds or starts workers. It is imported only when used."""
    one_machine: bool = False
    """All processes share this machine's cores, and the parent ends all of them."""
    platform_restarts: bool = False
    """A platform starts each task, shows its log, and restarts all tasks after a failure."""


PLACES = {
    "local": PlaceKind("paceline.places.local", one_machine=True),
    "tf_config": PlaceKind("paceline.places.tf_config", platform_restarts=True),
    "slurm": PlaceKind("paceline.places.slurm", platform_restarts=True),
    "kubernetes": PlaceKind("paceline.places.kubernetes", platform_restarts=True),
    "ray": PlaceKind("paceline.places.ray"),
    "spark": PlaceKind("paceline.places.spark.place"),
}


@dataclass(frozen=True)
class Ray:
    """Ray: each worker is an actor."""

    address: str = ""
    """Address of a cluster, as for ray.init. Default: RAY_ADDRESS, or a new cluster here."""
    cpus_per_worker: Annotated[float, Range(0)] = 1.0
    """Number of cores that Ray reserves for each worker."""
    gpus_per_worker: float = -1.0
    """Number of GPUs that Ray reserves for each worker. -1 means one if the cluster has GPUs."""
    evaluator: bool = False
    """Start one more actor, on this command's node, that evaluates checkpoints during training."""


@dataclass(frozen=True)
class Spark:
    """Spark: each worker is a task of a barrier stage."""

    master: str = ""
    """URL of the cluster, as for spark-submit. Default: Spark's own configuration."""
    conf: tuple[str, ...] = ()
    """Other Spark settings, each as KEY=VALUE."""


@dataclass(frozen=True)
class Place:
    """Where workers run. This does not change the numbers."""

    on: PlaceName = "auto"
    """What starts the workers: this command (local), a platform that sets TF_CONFIG, Slurm's srun,
    an Indexed Job of Kubernetes, Ray or Spark. auto finds out from the environment variables."""
    workers: Annotated[int, Range(1)] = 1
    """Number of processes that share the replicas, from 1 to the number of replicas."""
    devices: Literal["auto", "cpu", "gpu"] = "auto"
    """Devices to train on. auto: GPUs if TensorFlow finds some, else the CPU. gpu needs a GPU."""
    cores: Annotated[int, Range(0)] = 0
    """Cores of each worker. 0 uses an equal share of the machine, or spark.task.cpus on Spark."""
    start_timeout: Seconds = 300.0
    """Seconds allowed for all workers to connect and finish their first block."""
    stall_timeout: Seconds = 60.0
    """Seconds without progress after which a worker is treated as lost."""
    max_restarts: Annotated[int, Range(0)] = 3
    """Restarts allowed between two checkpoints (local, spark)."""
    min_workers: Annotated[int, Range(0)] = 0
    """If restarts keep failing, drop one worker at a time down to this number. 0 disables."""
    ps: Annotated[int, Range(0)] = 0
    """Number of parameter servers, each with a part of the state (local). With parameter
    servers, one extra process, the chief, coordinates the workers. 0 disables."""
    chief_trains: bool = False
    """With parameter servers, the chief also trains. A `master` of TF_CONFIG always does."""
    ignore_ps: bool = False
    """Train without the ps tasks of TF_CONFIG: they wait, and end with the others."""
    ray: Ray = field(default_factory=Ray)
    spark: Spark = field(default_factory=Spark)

    def with_workers(self, workers: int) -> Place:
        """Return the place with a different number of workers, for one attempt."""
        return replace(self, workers=workers, min_workers=min(self.min_workers, workers))

    @property
    def kind(self) -> PlaceKind:
        """What is special about this place; `auto` is local until a place is chosen."""
        return PLACES["local" if self.on == "auto" else self.on]


@dataclass(frozen=True)
class Run:
    """The run: its folder, and what is written there."""

    run_dir: str = ""
    """Folder of the run.
    Empty means runs/<recipe>-<hash of the experiment>, so that the same command resumes."""
    stop_at: Annotated[int, Range(0)] = 0
    """Stop after this step and save, as Ctrl-C would. The same command without this flag continues.
    0 trains to the end."""
    keep: Annotated[int, Range(1)] = 2
    """Number of newest checkpoints to keep, in addition to the best one."""
    chain: bool = True
    """Record digests and signatures, which `paceline verify` and `paceline diff` need."""
    actions: tuple[str, ...] = ()
    """Your own functions, as package.module:function or file.py:function.
    Each is called with (step, metrics) after every block. After a crash, it may be called again for
    the same steps."""
    act_every: Annotated[int, Range(0)] = 0
    """Steps between two calls of your actions. 0 calls them after every block of about 5 seconds.
    An action with the attribute `wants_state` also gets the weights, read-only."""
    track: tuple[TrackerName, ...] = ()
    """Experiment trackers that get the run's settings, metrics, result and files: mlflow, wandb.
    Their own environment variables set the address (MLFLOW_TRACKING_URI, WANDB_MODE ...)."""
    trust_code: bool = False
    """Allow running the copy of your code stored in the run folder. Only for runs you trust."""
    histograms: bool = False
    """Show distributions of weights and statistics, and images, in TensorBoard."""
    profile: tuple[int, ...] = ()
    """First and last step to profile for TensorBoard, rounded to blocks of steps."""


@dataclass(frozen=True)
class Cluster:
    """The processes of a run, chief first, and which of them this one is.

    Without addresses there is one process, as for an evaluator. With parameter servers (`ps`), the
    chief coordinates; workers and parameter servers do what it sends them.
    """

    addresses: tuple[str, ...] = ()
    index: int = 0
    role: Literal["worker", "evaluator", "ps"] = "worker"
    ps: tuple[str, ...] = ()
    chief_trains: bool = False
    """Whether the chief of parameter servers also computes replicas."""
    idle: tuple[str, ...] = ()
    """Addresses of ps tasks that only wait for the end (`places.platform_task`)."""

    @property
    def num_workers(self) -> int:
        """Number of processes that compute."""
        return max(1, len(self.addresses) - bool(self.ps and not self.chief_trains))

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run folder."""
        return self.role == "worker" and self.index == 0

    @property
    def serves(self) -> bool:
        """Whether this process does what a chief sends it, or waits for the chief's end."""
        return self.role == "ps" or (bool(self.ps) and not self.is_chief)

    @property
    def everyone(self) -> tuple[str, ...]:
        """Addresses of all processes."""
        return self.addresses + self.ps

    @property
    def address(self) -> str:
        """Address of this process."""
        return ((self.ps or self.idle) if self.role == "ps" else self.addresses)[self.index]

    @property
    def name(self) -> str:
        """Name of this process in messages and logs; without servers, the chief is worker 0."""
        if self.role == "ps" or not self.ps:
            return f"{self.role} {self.index}"
        return f"worker {self.index - 1}" if self.index else "chief"

    @property
    def tasks(self) -> dict[str, list[str]]:
        """The cluster as TensorFlow's ParameterServerStrategy takes it."""
        chief, workers = list(self.addresses[:1]), list(self.addresses[1:])
        return {"chief": chief, "worker": workers, "ps": list(self.ps)}


@dataclass(frozen=True)
class Job:
    """Everything that a worker process needs to know."""

    experiment: Experiment
    place: Place = field(default_factory=Place)
    run: Run = field(default_factory=Run)
    cluster: Cluster = field(default_factory=Cluster)
    request: Request | None = None
    """What a worker does instead of training."""

    def __post_init__(self) -> None:
        check_fields(self.place)
        check_fields(self.run)
        if len(self.run.profile) not in (0, 2) or sorted(set(self.run.profile)) != [
            *self.run.profile
        ]:
            raise UserError(
                f"profile is {self.run.profile}; it must be two steps, the first below the last, "
                "such as --profile 10 20"
            )
        _check_place(self.place, self.experiment.replicas)
        if (self.place.ps or self.cluster.ps) and self.experiment.precision == "float16":
            raise UserError(
                "precision float16 does not work with parameter servers: they share no loss scale; "
                "use bfloat16 or float32, or leave out --ps (or the ps tasks of TF_CONFIG)"
            )

    @property
    def dry_run(self) -> bool:
        """Whether the job only describes what it would do."""
        return isinstance(self.request, DescribeRequest)

    @property
    def engine(self) -> str:
        """Name of the engine with which the workers train together; see `engines.base`."""
        method = self.experiment.sync.method
        if self.cluster.ps and method == "weights":
            raise UserError(
                "sync.method weights does not work with parameter servers, because replicas do not "
                "have their own weights; leave out --ps (or the ps tasks of TF_CONFIG)"
            )
        if self.cluster.ps:
            return "parameter_server"
        if method == "async":
            raise UserError(
                "sync.method async needs parameter servers; pass --ps M on local, or ps tasks in "
                "the TF_CONFIG of tf_config"
            )
        return "ray" if self.place.on == "ray" else "collective"

    def to_json(self) -> Json:
        """Return the job as plain containers."""
        return asdict(self)

    @staticmethod
    def from_json(values: Json) -> Job:
        """Rebuild a job."""
        return from_json(Job, values)


def _check_place(place: Place, replicas: int) -> None:
    workers = place.workers
    if workers > replicas:
        raise UserError(
            f"workers is {workers}, but there are only {replicas} replicas to share; use "
            f"{replicas} workers or fewer, or --replicas {workers} or more (a different experiment)"
        )
    if place.min_workers > workers:
        raise UserError(
            f"min-workers is {place.min_workers}; it must be at most the {workers} workers"
        )
    if place.ps and place.chief_trains and workers < 2:
        raise UserError(
            "workers is 1 with ps and chief-trains, so the chief is the only worker; parameter "
            "servers need two; pass --workers 2 or more"
        )
    if place.ps and place.on in ("ray", "spark"):
        raise UserError(
            f"ps is {place.ps} on {place.on}; "
            "parameter servers run on local, tf_config, slurm and kubernetes"
        )
