"""Paceline's evaluation, as the collective engine runs it in one process.

    python -m benchmarks.contender_paceline_evaluation DEPTH DATA_FOLDER

A step evaluates the whole test set.
"""

import sys

from benchmarks.contender_paceline import build_engine, build_experiment
from benchmarks.protocol import serve


def main() -> None:
    engine = build_engine(build_experiment(int(sys.argv[1]), sys.argv[2]))
    serve(lambda steps: sum(engine.evaluate(final=True).splits["test"].count for _ in range(steps)))


if __name__ == "__main__":
    main()
