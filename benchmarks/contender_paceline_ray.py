"""Paceline on Ray: the engine of Ray with two workers of one core each.

python -m benchmarks.contender_paceline_ray DEPTH DATA_FOLDER gradients|weights

The cluster is on this machine.
"""

import sys
from dataclasses import replace

from benchmarks.contender_paceline import build_experiment
from benchmarks.protocol import serve_group
from paceline.build import build_core
from paceline.experiment.experiment import Sync
from paceline.fingerprint import fingerprint
from paceline.job import Job, Place

WORKERS, EVERY = 2, 10


def main() -> None:
    sync = Sync(method=sys.argv[3], every=EVERY)  # type: ignore[arg-type]
    experiment = replace(build_experiment(int(sys.argv[1]), sys.argv[2]), sync=sync)
    job = Job(experiment, Place(on="ray", workers=WORKERS))
    from paceline.engines_more.ray_actors.ray_engine import connect

    open_engine = connect(job, lambda: False)
    core = build_core(job)
    engine = open_engine(core)
    engine.check(fingerprint(job, core))
    engine.load(core.initial_state())
    step, round_steps = 0, core.plan.round_steps

    def train(steps: int) -> float:
        nonlocal step
        stop = step + -(-steps // round_steps) * round_steps
        engine.advance(step, stop)
        images = (stop - step) * experiment.global_batch_size
        step = stop
        return images

    serve_group(train)
    engine.close()


if __name__ == "__main__":
    main()
