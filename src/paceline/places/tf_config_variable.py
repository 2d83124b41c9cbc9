"""Parses the environment variable TF_CONFIG. No other code knows its format."""

from __future__ import annotations

import json
import re
from typing import Any

from paceline.cluster import Cluster
from paceline.errors import UserError

_ROLES = ("chief", "master", "worker", "evaluator", "ps")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})", re.ASCII)

Jobs = dict[str, tuple[str, ...]]
"""Addresses by role, with `chief` for `master` too."""


def parse_tf_config(text: str) -> tuple[Cluster, str]:
    """Return the cluster of a TF_CONFIG and the run folder that it names, or "".

    `master` is the old name of the chief; without either, worker 0 is the chief. An evaluator is
    not part of the cluster that trains, whether or not the platform lists it there.
    """
    config = _load(text)
    given = {name: _addresses(name, hosts) for name, hosts in _object(config, "cluster").items()}
    if unknown := [name for name in given if name not in _ROLES]:
        known = ", ".join(_ROLES)
        raise UserError(f"TF_CONFIG has the unknown role {unknown[0]!r}; known roles: {known}")
    if given.get("chief") and given.get("master"):
        raise UserError(
            "TF_CONFIG has both chief and master, which are two names of one role: keep one"
        )
    chiefs = given.get("chief") or given.get("master") or ()
    jobs: Jobs = {role: given.get(role, ()) for role in ("worker", "ps")} | {"chief": chiefs}
    _check(jobs)
    model_dir = config.get("model_dir") or ""
    if not isinstance(model_dir, str) or "\0" in model_dir:
        raise UserError(f"TF_CONFIG's model_dir is {model_dir!r}; it must be the path of a folder")
    return _task(_object(config, "task"), jobs, given), model_dir


def _check(jobs: Jobs) -> None:
    chiefs, workers, ps = jobs["chief"], jobs["worker"], jobs["ps"]
    everyone = chiefs + workers + ps
    if len(chiefs) > 1:
        raise UserError(f"TF_CONFIG has {len(chiefs)} chiefs; it must have one")
    if len(set(everyone)) < len(everyone):
        raise UserError(f"TF_CONFIG names an address twice: {', '.join(everyone)}")
    if not chiefs + workers:
        raise UserError("TF_CONFIG has no chief and no worker; at least one must train")
    missing = "chief (or master)" if not chiefs else "worker"
    if ps and not (chiefs and workers):
        raise UserError(
            f"TF_CONFIG has ps tasks but no {missing}; parameter servers need a chief, which "
            "coordinates and computes nothing, and workers: add what is missing"
        )


def _task(task: dict[str, Any], jobs: Jobs, given: Jobs) -> Cluster:
    role, index = task.get("type"), task.get("index", 0)
    if not isinstance(role, str) or role not in _ROLES:
        raise UserError(f"TF_CONFIG's task type is {role!r}; it must be one of {', '.join(_ROLES)}")
    if isinstance(index, str) and re.fullmatch(r"\d{1,9}", index, re.ASCII):
        index = int(index)  # some platforms quote it
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise UserError(f"TF_CONFIG's task index is {index!r}; it must be a whole number from 0 on")
    if role == "evaluator":
        if index:
            raise UserError(
                f"TF_CONFIG's task is evaluator {index}; a run has one evaluator, number 0"
            )
        return Cluster(role="evaluator")
    there = len(given.get(role, ()))
    if index >= there:
        raise UserError(
            f"TF_CONFIG's task is {role} {index}, but its cluster has {there} of that role"
        )
    addresses = jobs["chief"] + jobs["worker"]
    if role == "ps":
        return Cluster(addresses, index, "ps", jobs["ps"])
    own = index + len(jobs["chief"]) if role == "worker" else index
    return Cluster(addresses, own, ps=jobs["ps"])


def _load(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"TF_CONFIG is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"TF_CONFIG must be a JSON object, not {type(config).__name__}")
    return config


def _object(config: dict[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    if not isinstance(value, dict):
        raise UserError(
            f"TF_CONFIG has no {key!r}; it must be an object like "
            "{'cluster': {...}, 'task': {...}}"
        )
    return value


def _addresses(name: str, hosts: Any) -> tuple[str, ...]:
    if not isinstance(hosts, list):
        raise UserError(f"TF_CONFIG's {name} must be a list of host:port, not {hosts!r}")
    for host in hosts:
        match = _ADDRESS.fullmatch(host) if isinstance(host, str) else None
        if not match or not 0 < int(match[2]) < 65536:
            raise UserError(f"TF_CONFIG's {name} has the address {host!r}; it must be host:port")
    return tuple(hosts)
