"""Waits until a Spark cluster can run enough tasks at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.places.spark.session import count_slots, is_local

if TYPE_CHECKING:
    from pyspark import SparkContext

SETTLED_S = 10.0
"""If no executor comes for this long, no more are expected, unless the cluster says how many."""
WARN_EVERY_S = 10.0


def wait_for_slots(
    context: SparkContext,
    what: str,
    wanted: int,
    timeout_s: float,
    warn: Callable[[str], None],
    settled_s: float = SETTLED_S,
) -> None:
    """Wait until `wanted` tasks can run at once; raise UserError if they never will.

    Spark itself would wait for ten minutes, or for ever, without a number.
    """
    expected = max(1, _expected_executors(context))
    began = changed = warned = looked = time.monotonic()
    seen = (-1, -1)
    while True:
        now = time.monotonic()
        if now - looked > SETTLED_S:  # this process was stopped: executors had no time either
            began, changed = began + now - looked, changed + now - looked
        looked = now
        slots, executors = count_slots(context)
        if slots >= wanted:
            return
        if (slots, executors) != seen:
            seen, changed = (slots, executors), now
        settled = is_local(context) or now - changed > settled_s
        if (executors >= expected and settled) or now - began > timeout_s:
            cpus = context.getConf().get("spark.task.cpus", "1")
            raise UserError(
                f"{what} needs {wanted} slots at once, but Spark has {slots} ({executors} "
                f"executors, spark.task.cpus {cpus}); give fewer workers, or Spark more cores"
            )
        if now - warned > WARN_EVERY_S:
            warned = now
            warn(f"waiting for Spark: {slots} slots of {wanted}, {executors} executors")
        time.sleep(0.2)


def _expected_executors(context: SparkContext) -> int:
    """Return how many the cluster will start, or 0 if that is unknown.

    YARN and Kubernetes start two by default.
    """
    if cluster := re.match(r"local-cluster\[\s*(\d+)", context.master):
        return int(cluster[1])
    default = "2" if context.master.startswith(("yarn", "k8s")) else "0"
    return int(context.getConf().get("spark.executor.instances", default))
