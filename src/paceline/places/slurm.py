"""One task of a Slurm job step: `srun -n 4 paceline train RECIPE`.

Slurm's variables give every task the nodes of the step and its own number. Slurm starts and ends
the tasks; a batch script requeues the job (examples/slurm.sbatch).
"""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Message, Send, Start, Warn
from paceline.places.platform_task import build_cluster, number, open_task
from paceline.run_folder.folder import RunFolder
from paceline.storage.locations import is_remote
from paceline.supervise.interface import OpenPlace

FIRST_PORT = 10_000
"""Below the ports that Linux gives to outgoing connections (from 32,768)."""
PORTS_PER_STEP = 22
NUM_STEPS = 1_000
"""Number of job steps with distinct port ranges."""
STEPS_PER_JOB = 7
"""Concurrent steps of a job; the port ranges of consecutive jobs are this many steps apart."""


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """Find this task in Slurm's environment variables."""
    environment = os.environ
    if "SLURM_STEP_ID" not in environment:
        raise UserError(
            "--on slurm is for the tasks of a job step, and SLURM_STEP_ID is not set; "
            "start the tasks with srun -n N paceline train ..., or use --workers N on one machine"
        )
    check_identity(environment)
    addresses = task_addresses(environment)
    cores = job.place.cores or int(environment.get("SLURM_CPUS_PER_TASK", "1"))
    index, own = number(environment, "SLURM_PROCID"), replace(job.place, cores=cores)
    # all tasks write to one terminal, so only the chief's shows progress
    listener = partial(_pass_warnings, job.run.run_dir, listen) if index else listen
    try:
        cluster = build_cluster(addresses, index, job.place.ps)
        task = open_task(replace(job, place=own), cluster, "this job step", listen)
    except UserError:
        if index:  # all tasks find this error, and the first one reports it
            raise SystemExit(2) from None
        raise
    yield replace(task, listen=listener)


def _pass_warnings(run_dir: str, listen: Send, message: Message) -> None:
    """Pass warnings on, and check when training starts that this node sees the run folder. A
    requeued job may have its chief on this node."""
    if isinstance(message, Warn):
        listen(message)
    is_local = isinstance(message, Start) and not is_remote(run_dir)
    if is_local and not RunFolder(run_dir).exists():
        raise UserError(
            f"this node does not see the run folder {run_dir}, so a requeued job would start again "
            "from the beginning here; pass a --run-dir on a file system that all nodes share"
        )


def task_addresses(environment: Mapping[str, str]) -> list[str]:
    """Return the address of each task, by number. Each step has its own port range."""
    nodes = environment["SLURM_STEP_NODELIST"]
    names = _show("hostnames", nodes).split()
    # through these addresses, Slurm itself reaches the nodes
    shown = re.findall(r"NodeName=(\S+).*?NodeAddr=(\S+)", _show("node", nodes, "--oneliner"))
    hosts = [dict(shown).get(names[node], names[node]) for node, _ in _seats(environment)]
    most = max(Counter(hosts).values())
    if most > PORTS_PER_STEP:
        raise UserError(
            f"this step has {most} tasks on one host; it may have {PORTS_PER_STEP}: "
            "give each task more cores (srun --cpus-per-task), or use more nodes"
        )
    job, step = number(environment, "SLURM_JOB_ID"), number(environment, "SLURM_STEP_ID")
    first = FIRST_PORT + (job * STEPS_PER_JOB + step) % NUM_STEPS * PORTS_PER_STEP
    return [f"{host}:{first + hosts[:index].count(host)}" for index, host in enumerate(hosts)]


def check_identity(environment: Mapping[str, str]) -> None:
    """Raise UserError if this task has the number of a different task."""
    seats, task = _seats(environment), number(environment, "SLURM_PROCID")
    own = number(environment, "SLURM_NODEID"), number(environment, "SLURM_LOCALID")
    if task >= len(seats) or seats[task] != own:
        raise UserError(
            f"SLURM_PROCID is {task}, but SLURM_NODEID and SLURM_LOCALID are those of a different "
            "task. Leave these variables as srun sets them, and use its --distribution block or "
            "cyclic"
        )


def _seats(environment: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return the node of each task and its number on that node, in the order of the tasks."""
    per_node = tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
    seats = [(node, local) for node, count in enumerate(per_node) for local in range(count)]
    if environment.get("SLURM_DISTRIBUTION", "block").startswith("cyclic"):
        seats.sort(key=lambda seat: seat[::-1])
    return seats


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks of each node from Slurm's short form: 2(x3),1 is 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not match:
            raise UserError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}; it must be like 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _show(what: str, nodes: str, *options: str) -> str:
    """Return what `scontrol show` prints."""
    command = ["scontrol", "show", what, nodes, *options]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise UserError(
            "scontrol is not on the PATH of this node; Paceline needs it to find the nodes of the "
            "step. Set TF_CONFIG instead (docs/clusters.md)"
        ) from None
    if found.returncode:
        raise UserError(f"scontrol show {what} {nodes} failed: {found.stderr.strip()}")
    return found.stdout
