"""One task of a Slurm job step: `srun -n 4 paceline train RECIPE`.

Slurm's variables give every task the nodes of the step and its own number. Slurm starts and ends
the tasks; a batch script requeues the job (examples/slurm.sbatch).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Message, Send, Start, Warn
from paceline.places.platform_task import PlatformTask, build_cluster, number
from paceline.run_folder.folder import RunFolder
from paceline.storage.locations import is_remote

FIRST_PORT = 10_000
"""Below the ports that Linux gives to outgoing connections (from 32,768)."""
PORTS_PER_STEP = 22
NUM_STEPS = 1_000
"""Number of job steps with distinct port ranges."""
STEPS_PER_JOB = 7
"""Concurrent steps of a job; the port ranges of consecutive jobs are this many steps apart."""


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[PlatformTask]:
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
    _share_gpus(environment)
    index, own = number(environment, "SLURM_PROCID"), replace(job.place, cores=cores)
    try:
        cluster = build_cluster(addresses, index, job.place.ps)
        task = SlurmTask(replace(job, place=own), cluster, "this job step", listen)
    except UserError:
        if index:  # all tasks find this error, and the first one reports it
            raise SystemExit(2) from None
        raise
    yield task


class SlurmTask(PlatformTask):
    """A task of a step. All tasks write to one terminal, so only the chief's shows progress."""

    def listener(self, listen: Send) -> Send:
        return listen if self.job.cluster.is_chief else partial(self._pass_warnings, listen)

    def _pass_warnings(self, listen: Send, message: Message) -> None:
        """Pass warnings on, and check when training starts that this node sees the run folder.

        A requeued job may have its chief on this node.
        """
        if isinstance(message, Warn):
            listen(message)
        run_dir = self.job.run.run_dir
        if not isinstance(message, Start) or is_remote(run_dir):
            return
        if not RunFolder(run_dir).exists():
            raise UserError(
                f"this node does not see the run folder {run_dir}, so a requeued job would start "
                "again from the beginning here; give a --run-dir on a file system that all nodes "
                "share"
            )


def task_addresses(environment: Mapping[str, str]) -> list[str]:
    """Return the address of each task, in the order of their numbers."""
    hosts = _hosts_of_tasks(environment)
    first = _first_port(environment)
    used: dict[str, int] = {}
    addresses = []
    for host in hosts:
        addresses.append(f"{host}:{first + used.get(host, 0)}")
        used[host] = used.get(host, 0) + 1
    if max(used.values()) > PORTS_PER_STEP:
        raise UserError(
            f"this step has {max(used.values())} tasks on one host; it may have {PORTS_PER_STEP}: "
            "give each task more cores (srun --cpus-per-task), or use more nodes"
        )
    return addresses


def _first_port(environment: Mapping[str, str]) -> int:
    """Return the port of a step's first task on each host. Each step has its own port range."""
    job, step = number(environment, "SLURM_JOB_ID"), number(environment, "SLURM_STEP_ID")
    return FIRST_PORT + (job * STEPS_PER_JOB + step) % NUM_STEPS * PORTS_PER_STEP


def _hosts_of_tasks(environment: Mapping[str, str]) -> list[str]:
    """Return the host of each task, in the order of their numbers."""
    names = _show("hostnames", environment["SLURM_STEP_NODELIST"]).split()
    addresses = _node_addresses(environment["SLURM_STEP_NODELIST"])
    return [addresses.get(names[node], names[node]) for node, _ in _seats(environment)]


def _seats(environment: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return the node of each task and its number on that node, in the order of the tasks."""
    per_node = tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
    seats = [(node, local) for node, count in enumerate(per_node) for local in range(count)]
    if environment.get("SLURM_DISTRIBUTION", "block").startswith("cyclic"):
        seats.sort(key=lambda seat: seat[::-1])
    return seats


def check_identity(environment: Mapping[str, str]) -> None:
    """Raise UserError if this task has the number of a different task."""
    seats, task = _seats(environment), number(environment, "SLURM_PROCID")
    own = number(environment, "SLURM_NODEID"), number(environment, "SLURM_LOCALID")
    if task >= len(seats) or seats[task] != own:
        right = seats.index(own) if own in seats else "not in this step"
        raise UserError(
            f"SLURM_PROCID is {task}, but by SLURM_NODEID and SLURM_LOCALID this is task {right}; "
            "two tasks would have one identity. Leave these variables as srun sets them, and use "
            "its --distribution block or cyclic"
        )


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks of each node from Slurm's short form: 2(x3),1 is 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not match:
            raise UserError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}; it must be like 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _node_addresses(nodes: str) -> dict[str, str]:
    """Return the address of each node by its name, through which Slurm itself reaches it."""
    pairs = re.findall(r"NodeName=(\S+).*?NodeAddr=(\S+)", _show("node", nodes, "--oneliner"))
    return dict(pairs)


def _show(what: str, nodes: str, *options: str) -> str:
    """Return what `scontrol show` prints."""
    program = shutil.which("scontrol")
    if program is None:
        raise UserError(
            "scontrol is not on the PATH of this node; Paceline needs it to find the nodes of the "
            "step. Set TF_CONFIG instead (docs/clusters.md)"
        )
    found = subprocess.run(
        [program, "show", what, nodes, *options], capture_output=True, text=True, timeout=60
    )
    if found.returncode:
        raise UserError(f"scontrol show {what} {nodes} failed: {found.stderr.strip()}")
    return found.stdout


def _share_gpus(environment: Any) -> None:
    """If Slurm shows all GPUs of a node to all of its tasks, give each task its own GPUs."""
    visible = [gpu for gpu in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    per_node = tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
    here = per_node[number(environment, "SLURM_NODEID")]
    bound = "SLURM_GPUS_PER_TASK" in environment or "SLURM_STEP_GPUS_PER_TASK" in environment
    if bound or here == 1 or len(visible) < here:
        return
    share, local = len(visible) // here, number(environment, "SLURM_LOCALID")
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible[local * share : (local + 1) * share])
