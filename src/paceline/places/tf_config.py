"""One task of a cluster that a platform started: TF_CONFIG has the cluster and this task's role."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from paceline.config.job import Job
from paceline.engines.probe import answers
from paceline.errors import UserError
from paceline.messages import Send, Warn
from paceline.places.failures import WorkerFailed
from paceline.places.process_group import Group, forwarded_signals
from paceline.places.tf_config_variable import parse_tf_config


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run this task's worker to its end; a failure names the tasks that do not answer.

    The platform restarts tasks.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise UserError(
            "--on tf_config needs the environment variable TF_CONFIG, which is not set; "
            "use --workers N on one machine"
        )
    cluster, model_dir = parse_tf_config(text)
    place = replace(job.place, on="tf_config", workers=cluster.num_workers, ps=len(cluster.ps))
    run = replace(job.run, run_dir=model_dir or job.run.run_dir)
    group = Group([replace(job, place=place, cluster=cluster, run=run)], [None])
    others = [address for address in cluster.everyone if address != cluster.address]

    def while_waiting() -> None:
        if absent := _silent(others):
            listen(Warn(f"waiting for {', '.join(absent)}"))

    try:
        with forwarded_signals(group), group:
            return group.run(listen, while_waiting)
    except WorkerFailed as failure:
        gone = _silent(others)
        reason = failure.reason + (f"; no answer from {', '.join(gone)}" if gone else "")
        raise WorkerFailed(cluster.name, reason, None) from failure


def _silent(addresses: list[str]) -> list[str]:
    """Return those that do not answer; all are asked at the same time."""
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        found = pool.map(answers, addresses)
        return [address for address, there in zip(addresses, found, strict=True) if not there]
