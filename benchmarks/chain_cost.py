"""What the chain of a run costs: python -m benchmarks.chain_cost RECIPE [DATA]

Trains blocks of ten steps with and without signatures in turn, in one process, then takes a digest.
"""

import statistics
import sys
import time
from dataclasses import replace

from paceline.engines import devices
from paceline.engines.base import Engine, connect
from paceline.experiment.plan import RECORD_EVERY
from paceline.experiment.recipes.table import get_recipe
from paceline.job import Job, Place

STEPS, ROUNDS = 10, 11


def seconds(engine: Engine, start: int) -> float:
    began = time.perf_counter()
    engine.advance(start, start + STEPS)
    return time.perf_counter() - began


def main(recipe: str, data_dir: str) -> None:
    experiment = get_recipe(recipe)
    experiment = replace(experiment, data=replace(experiment.data, dir=data_dir))
    job = Job(experiment, Place(devices="cpu", on="local"))
    devices.import_tensorflow(job)
    import tensorflow as tf

    from paceline.build import build_core
    from paceline.maths import replica, signatures

    open_engine, sign, engines = connect(job, lambda: False), signatures.sign, list[Engine]()
    for signs in (sign, lambda parts, own, replicas: tf.zeros([replicas])):
        setattr(replica, "sign", signs)  # noqa: B010  it is not exported there
        core = build_core(job)
        engines.append(open_engine(core))
        engines[-1].load(core.initial_state())
        engines[-1].advance(0, 2)
    ratios, times = [], []
    for k in range(ROUNDS):
        order = (0, 1) if k % 2 else (1, 0)
        took = {which: seconds(engines[which], 2 + k * STEPS) for which in order}
        ratios.append(took[0] / took[1])
        times.append(took[1] / STEPS)
    step_s, began = statistics.median(times), time.perf_counter()
    engines[0].state().sha256()
    digest_s = time.perf_counter() - began
    print(
        f"{recipe}: a step takes {step_s:.4f} s; signatures {statistics.median(ratios) - 1:+.2%}, "
    )
    print(
        f"a digest {digest_s:.4f} s, {digest_s / RECORD_EVERY / step_s:.3%} of {RECORD_EVERY} steps"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
