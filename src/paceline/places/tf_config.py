"""One task of a cluster that a platform started: TF_CONFIG has the cluster and this task's role."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Send
from paceline.places.platform_task import run_task
from paceline.places.tf_config_variable import parse_tf_config


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run this task's worker to its end."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise UserError(
            "--on tf_config needs the environment variable TF_CONFIG, which is not set; "
            "use --workers N on one machine"
        )
    cluster, model_dir = parse_tf_config(text)
    run = replace(job.run, run_dir=model_dir or job.run.run_dir)
    return run_task(replace(job, run=run), cluster, "tf_config", "TF_CONFIG", listen)
