"""`paceline data convert` of a folder of JPEGs, or only decoding the same files with PIL.

    python -m benchmarks.contender_convert paceline|pil IMAGE_FOLDER

A step is the whole folder. Both use as many processes. The conversion starts new processes for each
step; the processes that decode live for a turn.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.protocol import Channel, Clock, serve

_FILES_AT_A_TIME = 16


def decode(path: str) -> None:
    from PIL import Image

    with Image.open(path) as picture:
        picture.load()


def serve_decoding(folder: str) -> None:
    files = sorted(str(path) for path in Path(folder).rglob("*.jpg"))

    def turn(steps: int) -> float:
        with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
            for _ in range(steps):
                pool.map(decode, files, _FILES_AT_A_TIME)
        return steps * len(files)

    serve(turn)


def serve_conversion(folder: str) -> None:
    from rich.console import Console

    from paceline.formats.convert import convert

    channel = Channel()
    while (steps := channel.next_turn()) is not None:
        # Removed after the answer: a person keeps what was converted.
        with tempfile.TemporaryDirectory(prefix="paceline-bench-") as out:
            clock, images = Clock.start(), 0
            for step in range(steps):
                notes = convert(folder, Path(out, str(step)), console=Console(quiet=True))
                images += sum(notes["records"].values())
            channel.report(images, *clock.read())


if __name__ == "__main__":
    {"paceline": serve_conversion, "pil": serve_decoding}[sys.argv[1]](sys.argv[2])
