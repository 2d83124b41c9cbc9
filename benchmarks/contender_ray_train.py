"""Ray Train's TorchTrainer with two workers of one thread each.

    python -m benchmarks.contender_ray_train DEPTH DATA_FOLDER            uses the line protocol
    python -m benchmarks.contender_ray_train DEPTH DATA_FOLDER --one      does one step and ends

It has the network and input of `contender_pytorch`. It needs a Python with torch and ray[train]:
PACELINE_RAY_TORCH_PYTHON.
"""

import sys
import tempfile
import threading
from typing import Any

from benchmarks.protocol import serve_group

WORKERS = 2


def train_loop(config: dict[str, Any]) -> None:
    """Run a worker. Rank 0 takes the number of steps of a turn from the queue; 0 ends it."""
    import ray.train
    import ray.train.torch
    import torch
    import torch.distributed

    from benchmarks.contender_pytorch import build_training, training_of

    torch.set_num_threads(1)
    rank, training = ray.train.get_context().get_world_rank(), training_of(config["model"])
    batches = training.batches(
        config["folder"], training.global_batch_size // WORKERS, rank, WORKERS
    )
    train = build_training(
        training, batches, lambda network: ray.train.torch.prepare_model(network)
    )
    while True:
        steps = torch.tensor(config["turns"].get() if rank == 0 else 0)
        torch.distributed.broadcast(steps, 0)
        if steps == 0:
            return
        train(int(steps))
        torch.distributed.barrier()
        if rank == 0:
            config["answers"].put(int(steps) * training.global_batch_size)


def main() -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.util.queue import Queue

    ray.init(
        address="local",
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    options = {"num_cpus": 0}
    turns, answers = Queue(actor_options=options), Queue(actor_options=options)
    config = {"model": sys.argv[1], "folder": sys.argv[2], "turns": turns, "answers": answers}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        scaling = ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 1})
        trainer = TorchTrainer(
            train_loop,
            train_loop_config=config,
            scaling_config=scaling,
            run_config=RunConfig(storage_path=folder),
        )
        fit = threading.Thread(target=trainer.fit, daemon=True)
        fit.start()

        def turn(steps: int) -> float:
            turns.put(steps)
            return answers.get(timeout=600)

        if sys.argv[3:] == ["--one"]:
            turn(1)
        else:
            serve_group(turn)
        turns.put(0)
        fit.join(30)


if __name__ == "__main__":
    main()
