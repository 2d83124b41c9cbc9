"""Measures time and memory of an index, and prints one line of JSON.

    python -m benchmarks.index_probe make FOLDER
    python -m benchmarks.index_probe load REPEATS SMALL_FOLDER LARGE_FOLDER

`load` first opens the small folder, which has as many shards. So the memory of TensorFlow and of
the shards is already in use before the large folder is opened, and the growth is due to its
records. `make` is another process, because it would leave free memory that `load` uses again.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from paceline.experiment.experiment import Data, Records
from paceline.formats.tfrecord import example
from paceline.formats.tfrecord.frames import framed
from paceline.formats.tfrecord.shards import IMAGE_KEY, LABEL_KEY, LABELS

if TYPE_CHECKING:
    from paceline.data.source import Source

SHARDS = {"train": 1024, "validation": 128}
"""As ImageNet has them."""


def write_shards(folder: Path, records: int) -> None:
    """Write `records` training records and one per validation shard, as small as possible.

    An index stores only where they begin.
    """
    folder.mkdir()
    record = framed(example.encode({IMAGE_KEY: b"\xff\xd8\xff", LABEL_KEY: 0}))
    for split, total in (("train", records), ("validation", SHARDS["validation"])):
        count = SHARDS[split]
        for number in range(count):
            here = total * (number + 1) // count - total * number // count
            Path(folder, f"{split}-{number:05d}-of-{count:05d}").write_bytes(record * here)
    Path(folder, LABELS).write_text("a class\n")


def open_folder(folder: str) -> Source:
    """Do everything from a folder to a source that can be read at any position."""
    from paceline.formats.tfrecord.tfrecord_source import build_tfrecord

    return build_tfrecord(Data(source="tfrecord", dir=folder), Records(), Console(quiet=True))


def read_last_step(source: Source) -> None:
    """Return the records of the last step of an epoch, in its order."""
    import tensorflow as tf

    from paceline.data.order import slice_indices

    size = source.train.size

    @tf.function(autograph=False)
    def read(step: tf.Tensor) -> tf.Tensor:
        return source.train.read(slice_indices(step, tf.constant(0, tf.int64), size, 1, 64, 0))[1]

    labels = read(tf.constant(size // 64 - 1, tf.int64)).numpy()
    assert labels.shape == (64,), labels.shape
    assert not labels.any()


def memory_bytes(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match, field
    return int(match[1]) * 1024


def make(folder: str) -> dict[str, float]:
    """Open a folder for the first time, which has to find every record."""
    from paceline.formats.tfrecord.index import load_index
    from paceline.formats.tfrecord.shards import train_and_test

    began = time.perf_counter()
    parts = load_index(
        folder, [shard for shards in train_and_test(folder).values() for shard in shards]
    )
    return {
        "records": sum(len(part.offsets) for part in parts),
        "make_s": time.perf_counter() - began,
    }


def load(repeats: str, small: str, large: str) -> dict[str, float | list[float]]:
    for _ in range(2):
        read_last_step(open_folder(small))
    gc.collect()
    before = memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    source = open_folder(large)
    read_last_step(source)
    peak = memory_bytes("VmHWM") - before
    gc.collect()
    kept, load_s = memory_bytes("VmRSS") - before, []
    del source
    for _ in range(int(repeats)):
        gc.collect()
        began = time.perf_counter()
        source = open_folder(large)
        load_s.append(time.perf_counter() - began)
        del source
    return {"load_s": load_s, "peak_bytes": peak, "kept_bytes": kept}


if __name__ == "__main__":
    print(json.dumps({"make": make, "load": load}[sys.argv[1]](*sys.argv[2:])))
