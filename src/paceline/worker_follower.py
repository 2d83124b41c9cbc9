"""A worker that is not the chief: it runs the same loop and writes nothing."""

from __future__ import annotations

from paceline.maths.evaluation import EvalResult
from paceline.maths.metrics import BlockResult
from paceline.messages import Advanced, Result
from paceline.runs.actions import StopOnNonFiniteLoss
from paceline.worker_training import Speed, Training


def follow(training: Training) -> bool:
    """Train with the chief's state; return whether a request stopped it."""
    job, engine = training.job, training.engine
    state = engine.load(training.core.initial_state())
    training.send(training.start_message(state.step, f"worker {job.cluster.index}: "))
    speed = Speed(job.experiment.global_batch_size)

    def report(block: BlockResult, evaluation: EvalResult | None) -> None:
        training.send(Advanced(block.step))

    outcome = training.run([StopOnNonFiniteLoss(), speed, report], state)
    result = training.result(engine.state(), outcome, speed)
    training.send(Result(result | {"run_dir": job.run.run_dir}))
    return training.was_stopped(outcome)
