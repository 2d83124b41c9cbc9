"""A real Slurm cluster of two nodes on this machine: a controller and two daemons."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.neighbors import free_addresses

CONF = """
ClusterName=paceline
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node-%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node-%n.log
SlurmctldPort={ports[0]}
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
PartitionName=main Nodes=ALL Default=YES State=UP
"""

WHY_NOT = (
    ""
    if shutil.which("slurmctld") and shutil.which("slurmd") and os.geteuid() == 0
    else "there is no Slurm here, or this is not root (Debian: apt-get install slurm-wlm)"
)


@dataclass(frozen=True)
class SlurmCluster:
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What its commands need."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        """Return what one of Slurm's commands prints."""
        environment = os.environ | self.environment
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Start the cluster, wait until both nodes are idle, and end it."""
    (folder / "state").mkdir(parents=True)
    ports = [address.split(":")[1] for address in free_addresses(3)]
    conf = CONF.format(host=socket.gethostname(), folder=folder, ports=ports)
    (folder / "slurm.conf").write_text(conf)
    cluster = SlurmCluster(folder)
    commands = [
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", "n1"],
        ["slurmd", "-D", "-N", "n2"],
    ]
    daemons = [
        subprocess.Popen(
            command,
            env=os.environ | cluster.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    try:
        deadline = time.monotonic() + 60
        while _idle(cluster) < 2:
            assert time.monotonic() < deadline, "the nodes of Slurm are not idle"
            time.sleep(0.1)
        yield cluster
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def _idle(cluster: SlurmCluster) -> int:
    try:
        return cluster.run("sinfo", "-h", "-N", "-o", "%T").split().count("idle")
    except subprocess.SubprocessError:  # the controller does not answer yet
        return 0
