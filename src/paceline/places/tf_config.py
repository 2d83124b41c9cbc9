"""One task of a cluster that somebody else started: TF_CONFIG says who takes part and who this process is."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from paceline.cluster import parse_tf_config
from paceline.errors import UserError
from paceline.job import Job
from paceline.places import Listen
from paceline.places.processes import Group, WorkerFailed, forwarded_signals

PROBE_S = 2.0
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings


def launch(job: Job, listen: Listen) -> dict[str, Any]:
    """Run this task's worker to its end. The platform restarts tasks; this one says who is missing and exits non-zero."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise UserError(
            "--on tf_config needs the environment variable TF_CONFIG, which is not set; use --workers N on one machine"
        )
    cluster, model_dir = parse_tf_config(text)
    job = replace(job, place=replace(job.place, on="tf_config", workers=cluster.num_workers), cluster=cluster)
    if model_dir:
        job = replace(job, run=replace(job.run, run_dir=model_dir))
    group = Group([job], [None])

    own = cluster.addresses[cluster.index : cluster.index + 1]
    others = [address for address in cluster.addresses if address not in own]

    def while_waiting() -> None:
        if absent := _silent(others):
            listen({"kind": "warning", "text": f"waiting for {', '.join(absent)}"})

    try:
        with forwarded_signals(group), group:
            return group.run(listen, while_waiting)
    except WorkerFailed as failure:
        gone = _silent(others)
        raise WorkerFailed(
            cluster.index, failure.reason + (f"; no answer from {', '.join(gone)}" if gone else ""), None
        ) from failure


def _silent(addresses: list[str]) -> list[str]:
    """Those that do not answer; asked all at once."""
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        return [address for address, answers in zip(addresses, pool.map(_answers, addresses), strict=True) if not answers]


def _answers(address: str) -> bool:
    """Whether a worker's gRPC server greets. Only to connect is not enough: for a stopped process its kernel does that."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S) as connection:
            connection.sendall(HTTP2_GREETING)
            return bool(connection.recv(1))
    except OSError:
        return False
