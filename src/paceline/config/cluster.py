"""Addresses and roles of the processes of one run; the only code that knows TF_CONFIG."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import UserError

_PROBE_S = 2.0
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
    [0, 0, 0, 4, 0, 0, 0, 0, 0]
)  # and empty settings
_ROLES = ("chief", "master", "worker", "evaluator", "ps")


@dataclass(frozen=True)
class Cluster:
    """Who takes part, chief first, and who this process is. No addresses: one process alone, as an
    evaluator is. With parameter servers (`ps`) the chief leads and computes nothing; the other
    workers and the parameter servers do what it sends them."""

    addresses: tuple[str, ...] = ()
    index: int = 0
    role: Literal["worker", "evaluator", "ps"] = "worker"
    ps: tuple[str, ...] = ()

    @property
    def num_workers(self) -> int:
        """Those that compute."""
        return max(1, len(self.addresses) - bool(self.ps))

    @property
    def is_chief(self) -> bool:
        return self.role == "worker" and self.index == 0

    @property
    def serves(self) -> bool:
        return bool(self.ps) and not self.is_chief

    @property
    def everyone(self) -> tuple[str, ...]:
        return self.addresses + self.ps

    @property
    def address(self) -> str:
        return (self.ps if self.role == "ps" else self.addresses)[self.index]

    @property
    def name(self) -> str:
        """What a person calls this process; without parameter servers the chief is worker 0."""
        if self.role == "ps" or not self.ps:
            return f"{self.role} {self.index}"
        return f"worker {self.index - 1}" if self.index else "chief"

    @property
    def tasks(self) -> dict[str, list[str]]:
        """The cluster as TensorFlow's parameter servers want it."""
        return {
            "chief": list(self.addresses[:1]),
            "worker": list(self.addresses[1:]),
            "ps": list(self.ps),
        }


def answers(address: str) -> bool:
    """Whether a worker's gRPC server greets. Only to connect is not enough: for a stopped process
    its kernel does that."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), timeout=_PROBE_S
        ) as connection:
            connection.sendall(_HTTP2_GREETING)
            return bool(connection.recv(1))
    except OSError:
        return False


def parse_tf_config(text: str) -> tuple[Cluster, str]:
    """The cluster of a TF_CONFIG and the run folder it names, or "". `master` is chief's old name;
    without either, worker 0 is chief.

    An evaluator is no part of the cluster that trains, whether or not the platform lists it there.
    """
    config = _load(text)
    jobs = {name: _addresses(name, hosts) for name, hosts in _dictionary(config, "cluster").items()}
    unknown = [name for name in jobs if name not in _ROLES]
    if unknown:
        raise UserError(
            f"TF_CONFIG has the unknown role {unknown[0]!r}; known: {', '.join(_ROLES)}"
        )
    if jobs.get("chief") and jobs.get("master"):
        raise UserError(
            "TF_CONFIG has both chief and master; they are two names of one role: keep one"
        )
    chiefs = jobs.get("chief", ()) or jobs.get("master", ())
    if len(chiefs) > 1:
        raise UserError(f"TF_CONFIG has {len(chiefs)} chiefs; there is one")
    addresses = chiefs + jobs.get("worker", ())
    ps = jobs.get("ps", ())
    if len({*addresses, *ps}) < len(addresses + ps):
        raise UserError(f"TF_CONFIG names an address twice: {', '.join(addresses + ps)}")
    if not addresses:
        raise UserError("TF_CONFIG has no chief and no worker; at least one must train")
    if ps and not chiefs:
        raise UserError(
            "TF_CONFIG has ps tasks but no chief (or master), which leads them and computes nothing: add one"
        )
    if ps and not jobs.get("worker"):
        raise UserError(
            "TF_CONFIG has ps tasks but no worker; the chief of parameter servers computes nothing: add workers"
        )
    return _task(config, jobs, addresses, len(chiefs)), str(config.get("model_dir") or "")


def _task(
    config: dict[str, Any],
    jobs: dict[str, tuple[str, ...]],
    addresses: tuple[str, ...],
    num_chiefs: int,
) -> Cluster:
    task = _dictionary(config, "task")
    role, index = task.get("type"), task.get("index", 0)
    if role not in _ROLES:
        raise UserError(f"TF_CONFIG's task type is {role!r}; it must be one of {', '.join(_ROLES)}")
    if isinstance(index, str) and index.isdigit():
        index = int(index)  # some platforms quote it
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise UserError(f"TF_CONFIG's task index is {index!r}; it must be a number from 0")
    if role == "evaluator" and index:
        raise UserError(f"TF_CONFIG's task is evaluator {index}; a run has one evaluator, number 0")
    if role == "evaluator":
        return Cluster(role="evaluator")
    if index >= len(jobs.get(role, ())):
        raise UserError(
            f"TF_CONFIG's task is {role} {index}, but its cluster has {len(jobs.get(role, ()))} of that role"
        )
    if role == "ps":
        return Cluster(addresses, index, "ps", jobs["ps"])
    return Cluster(
        addresses, index + (num_chiefs if role == "worker" else 0), ps=jobs.get("ps", ())
    )


def _load(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UserError(f"TF_CONFIG is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"TF_CONFIG must be a JSON object, not {type(config).__name__}")
    return config


def _dictionary(config: dict[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    if not isinstance(value, dict):
        raise UserError(
            f"TF_CONFIG has no {key!r}; it must be an object like {{'cluster': {{...}}, 'task': {{...}}}}"
        )
    return value


def _addresses(name: str, hosts: Any) -> tuple[str, ...]:
    if not isinstance(hosts, list):
        raise UserError(f"TF_CONFIG's {name} must be a list of host:port, not {hosts!r}")
    for host in hosts:
        match = (
            re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})", host)
            if isinstance(host, str)
            else None
        )
        if not match or not 0 < int(match[2]) < 65536:
            raise UserError(f"TF_CONFIG's {name} has the address {host!r}; it must be host:port")
    return tuple(hosts)
