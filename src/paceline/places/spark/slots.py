"""How many tasks a Spark cluster can run at once, and the wait until they are enough, which has an end and tells of itself."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.errors import UserError

if TYPE_CHECKING:
    from pyspark import SparkContext

SETTLED_S = 10.0
"""So long without another executor means that no more will come, on a cluster that does not say how many it will start."""
WARN_EVERY_S = 10.0


def wait_for_slots(
    context: SparkContext,
    what: str,
    wanted: int,
    timeout_s: float,
    warn: Callable[[str], None],
    patience_s: float = SETTLED_S,
) -> None:
    """Until `wanted` tasks can run at once. Spark itself would wait for ten minutes, or for ever, and not tell how many there are."""
    expected = _expected_executors(context)
    began = changed = warned = time.monotonic()
    seen = (-1, -1)
    while True:
        now, found = time.monotonic(), count_slots(context)
        if found[0] >= wanted:
            return
        if found != seen:
            seen, changed = found, now
        complete = found[1] >= max(1, expected) and (
            _is_local(context) or now - changed > patience_s
        )
        if complete or now - began > timeout_s:
            raise UserError(
                f"{what} needs {wanted} slots at once, but Spark has {found[0]} ({found[1]} executors, "
                f"spark.task.cpus {context.getConf().get('spark.task.cpus', '1')}); give fewer workers, or Spark more cores"
            )
        if now - warned > WARN_EVERY_S:
            warned = now
            warn(f"waiting for Spark: {found[0]} slots of {wanted}, {found[1]} executors")
        time.sleep(0.2)


def count_slots(context: SparkContext) -> tuple[int, int]:
    """How many tasks can run at once, by the count that Spark checks a barrier stage with, and on how many executors."""
    if context._jsc is None:
        raise UserError("the Spark session was stopped; the same command goes on from where it was")
    scala = context._jsc.sc()
    slots = scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile())
    return slots, scala.getExecutorMemoryStatus().size() - (
        not _is_local(context)
    )  # the driver is counted, too


def _is_local(context: SparkContext) -> bool:
    """Tasks in the driver's own Java: there is nothing to wait for."""
    return re.match(r"local(\[|$)", context.master) is not None


def _expected_executors(context: SparkContext) -> int:
    """How many the cluster will start; 0 where only time can tell. YARN and Kubernetes have two by default."""
    if cluster := re.match(r"local-cluster\[\s*(\d+)", context.master):
        return int(cluster[1])
    default = "2" if context.master.startswith(("yarn", "k8s")) else "0"
    return int(context.getConf().get("spark.executor.instances", default))
