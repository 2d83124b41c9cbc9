"""PyTorch, as an experienced user would train this ResNet on CPU cores.

    python -m benchmarks.contender_pytorch threads|compile|ddp|ddp-compile MODEL DATA_FOLDER

`threads` is one process with all threads, `ddp` one process per core with one thread each;
`compile` adds torch.compile, and `-bfloat16` after it autocast to bfloat16. All use channels-last,
in-place ReLU, the fused SGD and an input
pipeline of a few tensor operations per batch. MODEL is `speedrun`, or the depth of a ResNet: 50 is
ResNet-50 for images of 224 pixels from a folder of arrays; all other depths are CIFAR ResNets.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed
from torch import nn
from torch.nn import functional

from benchmarks import pytorch_resnet50, pytorch_speedrun
from benchmarks.images import MEAN, STD, load_training_images
from benchmarks.protocol import Channel, Clock, serve
from benchmarks.pytorch_crops import random_crops

PADDING = 4
BFLOAT16 = sys.argv[1].endswith("-bfloat16")
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Training:
    """What a model means; `batches` takes folder, batch size, rank and number of ranks."""

    network: Callable[[], nn.Module]
    batches: Callable[[str, int, int, int], Batches]
    global_batch_size: int
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = functional.cross_entropy


class Block(nn.Module):
    """Two 3x3 convolutions and the shortcut A: every second pixel, zero channels."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.convolution_1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.norm_1 = nn.BatchNorm2d(channels_out)
        self.convolution_2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(channels_out)
        self.stride, self.new_channels = stride, channels_out - channels_in

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm_1(self.convolution_1(inputs)), inplace=True)
        hidden = self.norm_2(self.convolution_2(hidden))
        if self.new_channels:
            half = self.new_channels // 2
            inputs = functional.pad(
                inputs[:, :, :: self.stride, :: self.stride],
                (0, 0, 0, 0, half, self.new_channels - half),
            )
        return functional.relu(hidden.add_(inputs), inplace=True)


class ResNet(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        blocks, channels = [], 16
        for stage, width in enumerate((16, 32, 64)):
            for number in range((depth - 2) // 6):
                blocks.append(Block(channels, width, 2 if stage and number == 0 else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.classes = nn.Linear(64, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm(self.convolution(pictures)), inplace=True)
        return self.classes(self.blocks(hidden).mean((2, 3)))


def training_batches(folder: str, batch_size: int, rank: int, num_ranks: int) -> Batches:
    """Yield endless shuffled batches: zero padding, random crop, flip, mean and deviation."""
    pictures, labels = (torch.from_numpy(array) for array in load_training_images(folder))
    pixels = functional.pad(pictures, (0, 0, PADDING, PADDING, PADDING, PADDING)).view(-1, 3)
    factor = 1 / torch.tensor(STD)
    shift, side = -torch.tensor(MEAN) * factor, 32 + 2 * PADDING
    shuffle = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(labels), generator=shuffle)[rank::num_ranks]
        for start in range(0, len(order) - batch_size + 1, batch_size):
            chosen = order[start : start + batch_size]
            crops = random_crops(pixels, side, chosen, 32, PADDING)
            yield torch.addcmul(shift, crops.float(), factor).permute(0, 3, 1, 2), labels[chosen]


def training_of(model: str) -> Training:
    if model == "speedrun":
        return Training(
            pytorch_speedrun.Speedrun,
            pytorch_speedrun.training_batches,
            1_000,
            pytorch_speedrun.Muon,
            partial(functional.cross_entropy, label_smoothing=0.2),
        )
    if model == "50":
        own = pytorch_resnet50
        return Training(own.ResNet50, own.training_batches, 16, sgd(0.01))
    return Training(lambda: ResNet(int(model)), training_batches, 128, sgd(0.1))


def sgd(rate: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda network: torch.optim.SGD(
        network.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
    )


def build_training(
    training: Training, batches: Batches, wrap: Callable[[nn.Module], nn.Module]
) -> Callable[[int], None]:
    torch.manual_seed(0)
    network = wrap(training.network().to(memory_format=torch.channels_last))
    optimizer = training.optimizer(network)

    def train(steps: int) -> None:
        for _ in range(steps):
            pictures, labels = next(batches)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=BFLOAT16):
                outputs = network(pictures)
            training.loss(outputs.float(), labels).backward()
            optimizer.step()

    return train


def run_threads(training: Training, folder: str, wrap: Callable[[nn.Module], nn.Module]) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    train = build_training(
        training, training.batches(folder, training.global_batch_size, 0, 1), wrap
    )

    def turn(steps: int) -> float:
        train(steps)
        return steps * training.global_batch_size

    serve(turn)


def run_rank(
    training: Training,
    folder: str,
    wrap: Callable[[nn.Module], nn.Module],
    rank: int,
    meeting_file: str,
) -> None:
    """Run one process of DDP.

    Rank 0 talks to the harness and sends the others the number of steps of a turn; 0 ends them.
    """
    num_ranks = len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting_file}", rank=rank, world_size=num_ranks
    )

    def distribute(network: nn.Module) -> nn.Module:
        return wrap(
            nn.parallel.DistributedDataParallel(
                network, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        )

    batches = training.batches(folder, training.global_batch_size // num_ranks, rank, num_ranks)
    train = build_training(training, batches, distribute)
    channel = Channel() if rank == 0 else None
    while True:
        steps = torch.tensor(channel.next_turn() or 0) if channel else torch.tensor(0)
        clock = Clock.start()
        torch.distributed.broadcast(steps, 0)
        if steps == 0:
            break
        train(int(steps))
        cpu_s = torch.tensor(clock.read()[1], dtype=torch.float64)
        torch.distributed.all_reduce(cpu_s)
        if channel:
            channel.report(int(steps) * training.global_batch_size, clock.read()[0], float(cpu_s))
    torch.distributed.destroy_process_group()


def run_ddp(training: Training, folder: str, wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Start the other ranks with the same command, and run rank 0."""
    with tempfile.TemporaryDirectory() as meeting_folder:
        meeting_file = f"{meeting_folder}/ranks"
        command = [
            sys.executable,
            "-m",
            "benchmarks.contender_pytorch",
            *sys.argv[1:4],
            meeting_file,
        ]
        ranks = range(1, len(os.sched_getaffinity(0)))
        others = [
            subprocess.Popen([*command, str(rank)], stdin=subprocess.DEVNULL) for rank in ranks
        ]
        run_rank(training, folder, wrap, 0, meeting_file)
        for other in others:
            other.wait()


def main() -> None:
    variant, training, folder = sys.argv[1], training_of(sys.argv[2]), sys.argv[3]
    wrap = torch.compile if "compile" in variant else lambda network: network
    if len(sys.argv) > 4:
        run_rank(training, folder, wrap, int(sys.argv[5]), sys.argv[4])
    elif variant.startswith("ddp"):
        # Without it gloo asks the name service for this host's address, which may not answer.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        run_ddp(training, folder, wrap)
    else:
        run_threads(training, folder, wrap)


if __name__ == "__main__":
    main()
