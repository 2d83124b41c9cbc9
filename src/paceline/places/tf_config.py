"""One task of a cluster that a platform describes in TF_CONFIG, with this task's role."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from paceline.errors import UserError
from paceline.experiment.fields import Json
from paceline.job import Cluster, Job
from paceline.messages import Send
from paceline.places.platform_task import open_task
from paceline.run_folder.folder import is_default_path
from paceline.supervise.interface import OpenPlace

_ROLES = ("chief", "master", "worker", "evaluator", "ps")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})", re.ASCII)


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """Read TF_CONFIG, which may also name the run folder."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise UserError(
            "--on tf_config needs the environment variable TF_CONFIG, which is not set; "
            "use --workers N on one machine"
        )
    cluster, model_dir = parse_tf_config(text, job.place.ignore_ps)
    run_dir = job.run.run_dir
    same = os.path.abspath(model_dir) == os.path.abspath(run_dir)
    if model_dir and not same and not is_default_path(run_dir, job.experiment):
        raise UserError(
            f"--run-dir is {run_dir}, but TF_CONFIG has model_dir {model_dir}; leave out one"
        )
    run = replace(job.run, run_dir=model_dir or run_dir)
    yield open_task(replace(job, run=run), cluster, "TF_CONFIG", listen)


def parse_tf_config(text: str, ignore_ps: bool = False) -> tuple[Cluster, str]:
    """Return the cluster of a TF_CONFIG and the run folder that it names, or "".

    A `master` is a chief that trains, even with parameter servers; without either, worker 0 is the
    chief. An evaluator is not part of the cluster that trains, whether or not the platform lists it
    there. With `ignore_ps`, the ps tasks are idle.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"TF_CONFIG is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"TF_CONFIG must be a JSON object, not {type(config).__name__}")
    for key in ("cluster", "task"):
        if not isinstance(config.get(key), dict):
            example = "{'cluster': {...}, 'task': {...}}"
            raise UserError(f"TF_CONFIG has no {key!r}; it must be an object like {example}")
    model_dir = config.get("model_dir") or ""
    if not isinstance(model_dir, str) or "\0" in model_dir:
        raise UserError(f"TF_CONFIG's model_dir is {model_dir!r}; it must be the path of a folder")
    roles = _read_roles(config["cluster"], ignore_ps)
    leads = bool(config["cluster"].get("master"))
    cluster = replace(_find_task(config["task"], roles), chief_trains=leads)
    if ignore_ps:
        cluster = replace(cluster, ps=(), idle=roles["ps"])
    return cluster, model_dir


def _read_roles(cluster: Json, ignore_ps: bool) -> dict[str, tuple[str, ...]]:
    """Return the addresses by role, those of `master` as `chief`."""
    given = {role: _addresses(role, hosts) for role, hosts in cluster.items()}
    if unknown := [role for role in given if role not in _ROLES]:
        known = ", ".join(_ROLES)
        raise UserError(f"TF_CONFIG has the unknown role {unknown[0]!r}; known roles: {known}")
    if given.get("chief") and given.get("master"):
        raise UserError(
            "TF_CONFIG has both chief and master, which are two names of one role: keep one"
        )
    chiefs = given.get("chief") or given.get("master") or ()
    workers, ps = given.get("worker", ()), given.get("ps", ())
    everyone = chiefs + workers + ps
    if len(chiefs) > 1:
        raise UserError(f"TF_CONFIG has {len(chiefs)} chiefs; it must have one")
    if len(set(everyone)) < len(everyone):
        raise UserError(f"TF_CONFIG names an address twice: {', '.join(everyone)}")
    if not chiefs + workers:
        raise UserError("TF_CONFIG has no chief and no worker; at least one must train")
    if ps and not ignore_ps and not (chiefs and workers):
        missing = "worker" if chiefs else "chief (or master)"
        raise UserError(
            f"TF_CONFIG has ps tasks but no {missing}; parameter servers need a chief, which "
            "coordinates, and workers: add what is missing, or train without them: --ignore-ps"
        )
    return {"chief": chiefs, "worker": workers, "ps": ps}


def _addresses(role: str, hosts: Any) -> tuple[str, ...]:
    if not isinstance(hosts, list):
        raise UserError(f"TF_CONFIG's {role} must be a list of host:port, not {hosts!r}")
    for host in hosts:
        match = _ADDRESS.fullmatch(host) if isinstance(host, str) else None
        if not match or not 0 < int(match[2]) < 65536:
            raise UserError(f"TF_CONFIG's {role} has the address {host!r}; it must be host:port")
    return tuple(hosts)


def _find_task(task: Json, roles: dict[str, tuple[str, ...]]) -> Cluster:
    role, index = task.get("type"), task.get("index", 0)
    if not isinstance(role, str) or role not in _ROLES:
        raise UserError(f"TF_CONFIG's task type is {role!r}; it must be one of {', '.join(_ROLES)}")
    if isinstance(index, str) and re.fullmatch(r"\d{1,9}", index, re.ASCII):
        index = int(index)  # some platforms quote it
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise UserError(f"TF_CONFIG's task index is {index!r}; it must be a whole number from 0 on")
    if role == "evaluator" and index:
        raise UserError(f"TF_CONFIG's task is evaluator {index}; a run has one evaluator, number 0")
    if role == "evaluator":
        return Cluster(role="evaluator")
    there = len(roles["chief" if role == "master" else role])
    if index >= there:
        raise UserError(
            f"TF_CONFIG's task is {role} {index}, but its cluster has {there} of that role"
        )
    addresses = roles["chief"] + roles["worker"]
    if role == "ps":
        return Cluster(addresses, index, "ps", roles["ps"])
    own = index + len(roles["chief"]) if role == "worker" else index
    return Cluster(addresses, own, ps=roles["ps"])
