"""PyTorch's evaluation of a CIFAR ResNet in `inference_mode`, channels-last.

    python -m benchmarks.contender_pytorch_evaluation VARIANT DEPTH DATA_FOLDER [RANK]

`threads` is one process with all threads, `processes` one process per core with one thread each
and its part of the test set; `compile` adds torch.compile. A step evaluates 1,000 images: scaling,
outputs, loss and the number of correct predictions.
"""

import os
import sys
from collections.abc import Callable
from itertools import cycle, islice

import torch
from torch import nn
from torch.nn import functional

from benchmarks.contender_pytorch import ResNet
from benchmarks.images import MEAN, STD, TEST_FILES, load_images
from benchmarks.protocol import serve, serve_processes

BATCH_SIZE = 125
BATCHES = 8
"""Of all processes in a step."""


def build_evaluation(
    network: nn.Module, folder: str, rank: int, num_ranks: int
) -> Callable[[], int]:
    """Return a function that evaluates the next batches of the test set, again and again."""
    pictures, labels = (
        torch.from_numpy(array)[rank::num_ranks].contiguous()
        for array in load_images(folder, TEST_FILES)
    )
    factor = 1 / torch.tensor(STD)
    shift = -torch.tensor(MEAN) * factor
    batches = cycle(zip(pictures.split(BATCH_SIZE), labels.split(BATCH_SIZE), strict=True))

    own_batches = max(1, BATCHES // num_ranks)

    @torch.inference_mode()
    def evaluate() -> int:
        loss, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        for part, targets in islice(batches, own_batches):
            outputs = network(torch.addcmul(shift, part.float(), factor).permute(0, 3, 1, 2))
            loss += functional.cross_entropy(outputs, targets, reduction="sum")
            correct += (outputs.argmax(1) == targets).sum()
        count = BATCH_SIZE * own_batches
        assert loss.isfinite()
        assert correct <= count
        return count

    return evaluate


def main() -> None:
    variant, depth, folder, *rank = sys.argv[1:]
    cores = len(os.sched_getaffinity(0))
    if variant.startswith("processes") and not rank:
        own = (sys.executable, "-m", "benchmarks.contender_pytorch_evaluation", *sys.argv[1:4])
        serve_processes([[*own, str(number)] for number in range(cores)], sum)
        return
    torch.set_num_threads(1 if rank else cores)
    torch.manual_seed(0)
    network: nn.Module = ResNet(int(depth)).to(memory_format=torch.channels_last).eval()
    if variant.endswith("compile"):
        network.compile()
    part = (int(rank[0]), cores) if rank else (0, 1)
    evaluate = build_evaluation(network, folder, *part)
    serve(lambda steps: sum(evaluate() for _ in range(steps)))


if __name__ == "__main__":
    main()
