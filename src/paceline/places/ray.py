"""Workers on a Ray cluster. One process of this machine is the driver: only it connects to Ray.

The driver is also the chief: its engine (`engines_more.ray_actors`) starts the workers as actors.
If the driver fails, it is started again from the last checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Send
from paceline.run_folder.folder import RunFolder
from paceline.supervise.interface import OpenPlace
from paceline.supervise.process import LocalWorker


@contextmanager
def open_place(job: Job, listen: Send) -> Iterator[OpenPlace]:
    """Check what Ray needs, and make the run folder."""
    if not find_spec("ray"):
        raise UserError(
            "--on ray needs the package ray; install it with pip install 'paceline[ray]'"
        )
    with RunFolder(job.run.run_dir).begun():
        yield OpenPlace(job, partial(_prepare, job), listen)


@contextmanager
def _prepare(job: Job, count: int) -> Iterator[list[LocalWorker]]:
    """Yield the driver, which finds `count` workers in the cluster."""
    cores = job.place.cores or int(job.place.ray.cpus_per_worker)
    place = replace(job.place.with_workers(count), cores=cores)
    log = RunFolder(job.run.run_dir).log(job.cluster.name)
    yield [LocalWorker(replace(job, place=place), log)]
