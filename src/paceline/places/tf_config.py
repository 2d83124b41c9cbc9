"""One task of a cluster that a platform describes in TF_CONFIG, with this task's role."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Send
from paceline.places.platform_task import PlatformTask
from paceline.places.tf_config_variable import parse_tf_config


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[PlatformTask]:
    """Read TF_CONFIG, which may also name the run folder."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise UserError(
            "--on tf_config needs the environment variable TF_CONFIG, which is not set; "
            "use --workers N on one machine"
        )
    cluster, model_dir = parse_tf_config(text)
    run = replace(job.run, run_dir=model_dir or job.run.run_dir)
    yield PlatformTask(replace(job, run=run), cluster, "TF_CONFIG", listen)
