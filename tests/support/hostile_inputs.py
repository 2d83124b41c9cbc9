"""Everything that comes from outside, mutated: the readers without TensorFlow, in this process.

`python hostile_inputs.py SEED COUNT [TARGET...]` gives COUNT mutated inputs to each target, within
limits of memory and time. A target either accepts an input, and then what it read must be right, or
it raises a UserError of one line. Anything else is printed with the input, and the exit code is 1.
Not a test itself: `test_hostile_input.py` runs it.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hostile_commands import command_lines
from mutations import json_input, mutate, mutate_json
from paceline.chief import find_finished
from paceline.errors import UserError
from paceline.experiment.experiment import Records
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.report.report_page import render_page
from paceline.extras.report.run_data import read_run
from paceline.formats import arrays, cifar
from paceline.formats.image_folder import inspect_image
from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.index import load_index
from paceline.formats.tfrecord.record import BadRecord, framed, read_all
from paceline.formats.tfrecord.shards import complete_keys, find_splits, noted_keys, read_labels
from paceline.maths.state import State, StateLayout
from paceline.places.tf_config import parse_tf_config
from paceline.results.image_bytes import as_jpeg_or_png, to_png
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.listing import list_runs
from paceline.run_folder.weights import newest_variables
from paceline.storage.files import CHECKSUM, sealed, unsealed
from paceline.storage.lease import Lease, parse_lease
from paceline.storage.lock import Owner
from report_runs import make_run
from small_images import encode

SECONDS_PER_INPUT = 10
EXTRA_BYTES = 1 << 30
"""Memory that an input may take beyond what the readers have at the start."""

Try = Callable[[random.Random], bytes]
"""Mutates an input, gives it to the readers, checks what they return; returns the input."""
TARGETS: dict[str, tuple[Callable[[Path], Try], float]] = {}
"""Name -> the target, and its share: some read faster than others."""
LAYOUT = StateLayout({"params": (("a", (3, 2)), ("b", ())), "stats": (("m", (4,)),)})


def target(share: float) -> Callable[[Callable[[Path], Try]], None]:
    """Add a function to the targets: of a folder, it makes what tries one input."""
    return lambda make: TARGETS.update({make.__name__: (make, share)})


class TooSlow(BaseException):
    """An input took longer than its limit."""


class each_refused:
    """Accepts a UserError of one line of a sensible length."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, UserError):
            return False
        text = str(error)
        assert len(text.split("\n")) == 1, f"not one line: {text!r}"
        assert len(text) < 20_000, f"a line of {len(text)} characters: {text[:200]!r}"
        return True


def reading(content_of: Try, read: Callable[[bytes], object], file: Path | None = None) -> Try:
    """Return what gives inputs to a reader, through a file or as bytes."""

    def attempt(chance: random.Random) -> bytes:
        content = content_of(chance)
        if file:
            file.write_bytes(content)
        with each_refused():
            read(content)
        return content

    return attempt


def damaged(*wholes: bytes) -> Try:
    return lambda chance: mutate(chance.choice(wholes), chance)


def bytes_or_json(original: Any) -> Try:
    """Return what damages JSON: its bytes or its values."""

    def content_of(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return mutate(json.dumps(original).encode(), chance)
        return json.dumps(mutate_json(original, chance)).encode("utf-8", "surrogatepass")

    return content_of


def small_run(folder: Path) -> RunFolder:
    run = RunFolder(make_run(folder / "runs" / "one", records=8, examples=20, side=4))
    run.metrics.truncate(10**9)  # seals the lines
    return run


def show(run: RunFolder, content: bytes) -> None:
    """Look at a run as commands do; draw the page of a report, which takes long, sometimes."""
    with each_refused():
        find_finished(run, get_recipe("shapes"), lambda message: None)
    with each_refused():
        list_runs(run.path.parent)
    with each_refused():
        read = read_run(run)
        if len(content) % 10 == 0:
            render_page([read]).encode(errors="backslashreplace")


def sealed_json(folder: Path, name: str, read: Callable[[RunFolder], object]) -> Try:
    """A file of a run with a checksum. While the checksum is the original, nothing may differ."""
    run = small_run(folder)
    original, truth = unsealed(json.loads((run.path / name).read_text())), read(run)
    checksum = f'"{CHECKSUM}": "{sealed(original)[CHECKSUM]}"'.encode()

    def use(content: bytes) -> None:
        show(RunFolder(run.path), content)
        with each_refused():
            RunFolder(run.path).data_facts()
        found = read(RunFolder(run.path))
        assert checksum not in content or found == truth

    return reading(lambda chance: json_input(original, chance), use, run.path / name)


@target(0.15)
def config(folder: Path) -> Try:
    return sealed_json(folder, "config.json", lambda run: run.experiment().to_json())


@target(0.15)
def result(folder: Path) -> Try:
    return sealed_json(folder, "result.json", lambda run: run.read_result())


@target(0.15)
def metrics(folder: Path) -> Try:
    run = small_run(folder)
    whole = {name: (run.path / name).read_bytes() for name in ("metrics.jsonl", "starts.jsonl")}
    records = run.metrics.read()

    def attempt(chance: random.Random) -> bytes:
        name, is_sealed = chance.choice(list(whole)), chance.random() < 0.5
        content = mutate(whole["metrics.jsonl"], chance)
        if not is_sealed:
            lines = [json.dumps(mutate_json(each, chance)) + "\n" for each in records]
            content = "".join(lines).encode("utf-8", "surrogatepass")
        (run.path / name).write_bytes(content)
        if is_sealed and name == "metrics.jsonl":
            assert all(each in records for each in run.metrics.read())
        show(run, content)
        (run.path / name).write_bytes(whole[name])
        return content

    return attempt


@target(0.15)
def evaluation(folder: Path) -> Try:
    run = small_run(folder)
    whole, truth = (run.path / "evaluation.npz").read_bytes(), run.read_predictions()
    assert truth is not None

    def read(content: bytes) -> None:
        show(run, content)
        found = run.read_predictions() or {}
        for name in found.keys() & truth.keys():
            np.testing.assert_array_equal(found[name], truth[name])

    return reading(damaged(whole), read, run.path / "evaluation.npz")


@target(0.6)
def checkpoint(folder: Path) -> Try:
    state = State(7, {"params": np.arange(7, dtype=np.float32), "stats": np.ones(4, np.float32)})
    checkpoints = Checkpoints(folder, LAYOUT, warn=lambda text: None)
    path = checkpoints.save(state, metric=0.5)
    whole = path.read_bytes()
    variables = newest_variables(folder, ("params", "stats"))

    def read(content: bytes) -> None:
        with each_refused():
            found = checkpoints.latest() or state
            assert found.sha256() == state.sha256()
        with each_refused():
            checkpoints.choose("best")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, value in newest_variables(folder, ("params", "stats")).items():
                np.testing.assert_array_equal(value, variables[name])

    return reading(damaged(whole), read, path)


@target(0.2)
def records(folder: Path) -> Try:
    """Shards, their index, labels.txt and dataset.json."""
    keys = ("image/encoded", "image/class/label")
    written = [record.encode({keys[0]: bytes([k]) * 9, keys[1]: k}) for k in range(5)]
    shard = b"".join(map(framed, written))
    notes = {"image_key": "image/encoded", "first_label": 0, "raw_shape": [1, 3, 3]}
    damaged_notes, cached = bytes_or_json(notes), ".paceline-index.npz"
    wholes = {
        "train-00000-of-00001": shard,
        "validation-00000-of-00001": shard,
        "labels.txt": b"cat\ndog\ncow\n",
        "dataset.json": json.dumps(notes).encode(),
    }

    def restore() -> None:
        for name, whole in wholes.items():
            (folder / name).write_bytes(whole)

    def load(**settings: Any) -> Any:
        found = find_splits(str(folder))
        shards = [shard for split in found.values() for shard in split]
        return load_index(str(folder), shards, keys, **settings)

    restore()
    truth = load()
    wholes[cached] = (folder / cached).read_bytes()

    def attempt(chance: random.Random) -> bytes:
        name = chance.choice(list(wholes))
        content = mutate(wholes[name], chance)
        if name == "dataset.json":
            content = damaged_notes(chance)
        if name != cached:
            (folder / cached).unlink(missing_ok=True)
        (folder / name).write_bytes(content)
        if "-of-" in name:
            found = [each for _, each in read_all(io.BytesIO(content), name, len(content))]
            assert all(isinstance(each, BadRecord) or each in written for each in found)
        with each_refused():
            complete_keys(Records(), noted_keys(str(folder)))
        with each_refused():
            assert len(read_labels(str(folder))) <= content.count(b"\n") + 4
        with each_refused():
            parts = load(skip_bad=chance.random() < 0.5)
            if name == cached:
                for part, right in zip(parts, truth, strict=True):
                    np.testing.assert_array_equal(part.offsets, right.offsets)
                    np.testing.assert_array_equal(part.labels, right.labels)
        restore()
        return content

    return attempt


@target(2.0)
def cifar_files(folder: Path) -> Try:
    """Pickles and binary files."""
    layouts = {each.folder: each for each in cifar.LAYOUTS}
    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    content = {b"data": pixels, b"labels": [3, 9], b"filenames": [b"a.png", b"b.png"]}
    pickles = [pickle.dumps(content, protocol) for protocol in range(6)]
    pickles += [
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of two billion places
        b"cbuiltins\nbytes\n(I1000000000000\ntR.",
        b"cnumpy\ndtype\n(VO8\nI0\nI1\ntR(I3\nV|\nNNNI-1\nI-1\nI63\ntb.",
        b"\x80\x03\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    ]
    binary = b"".join(bytes([label]) + bytes(3072) for label in (1, 2))

    def attempt(chance: random.Random) -> bytes:
        is_binary = chance.random() < 0.2
        content = mutate(binary if is_binary else chance.choice(pickles), chance)
        (folder / "batch").write_bytes(content)
        with each_refused():
            layout = layouts["cifar-10-batches-bin" if is_binary else "cifar-10-batches-py"]
            images, labels = cifar.read_file(layout, folder / "batch")
            assert (images.shape[1:], images.dtype) == ((32, 32, 3), np.uint8)
            assert len(labels) == len(images)
            assert 0 <= labels.min() <= labels.max() < 10
        return content

    return attempt


@target(0.5)
def array_files(folder: Path) -> Try:
    images, labels = np.zeros((3, 4, 4, 3), np.uint8), np.array([0, 1, 2])
    arrays.save_arrays(folder / "data", (images, labels), classes=["a", "b", "c"])
    wholes = {path: path.read_bytes() for path in (folder / "data").iterdir()}

    def attempt(chance: random.Random) -> bytes:
        path = chance.choice(list(wholes))
        content = mutate(wholes[path], chance)
        path.write_bytes(content)
        with each_refused():
            arrays.load_arrays(folder / "data")
        path.write_bytes(wholes[path])
        return content

    return attempt


@target(3.0)
def images(folder: Path) -> Try:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 3), np.uint8)
    seeds = [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"]
    seeds += [encode(pixels, kind) for kind in ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")]

    def read(content: bytes) -> None:
        with suppress(ValueError):
            found = as_jpeg_or_png(content)
            assert not (found and content.startswith(b"%!PS")), "an EPS file was read"
            to_png(content)
        with suppress(ValueError):
            assert inspect_image(content)[1] > 0

    return reading(damaged(*seeds), read)


@target(2.0)
def tf_config(folder: Path) -> Try:
    cluster = {"chief": ["a:1"], "worker": ["b:2", "[::1]:3"], "ps": ["c:4"]}
    original = {"cluster": cluster, "task": {"type": "worker", "index": "1"}, "model_dir": "x"}

    def read(content: bytes) -> None:
        cluster, _ = parse_tf_config(content.decode(errors="surrogateescape"))
        assert cluster.role == "evaluator" or cluster.address.count(":")

    return reading(bytes_or_json(original), read)


@target(2.0)
def lease(folder: Path) -> Try:
    """lease.json of a remote run folder."""
    original = Lease(Owner(1, "h", "t", 3), True, 7, {"a.json": "attempts/3/1/a"})

    def read(content: bytes) -> None:
        found = parse_lease(content, "s3://bucket/run")
        assert parse_lease(found.to_bytes(), "s3://bucket/run") == found
        assert found.epoch + 1 > found.epoch > 0
        assert not any(".." in key.split("/") for key in found.files.values())

    return reading(bytes_or_json(json.loads(original.to_bytes())), read)


target(1.0)(command_lines)


def run_target(name: str, seed: int, count: int) -> Iterator[str]:
    """Yield what is wrong: the input, and the traceback."""
    with tempfile.TemporaryDirectory(prefix="paceline-hostile-") as folder:
        attempt = TARGETS[name][0](Path(folder))
        for number in range(count):
            content = b"(lost)"
            signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_INPUT)
            try:
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    content = attempt(random.Random(f"{name} {seed} {number}"))
            except (Exception, TooSlow):
                signal.setitimer(signal.ITIMER_REAL, 0)
                where = f"{name}, seed {seed}, input {number}: {content[:500]!r}"
                yield f"{where}\n{traceback.format_exc()[-3000:]}"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)


def main(seed: int, count: int, names: list[str]) -> int:
    def too_slow(*_: Any) -> None:
        raise TooSlow(f"longer than {SECONDS_PER_INPUT} s")

    signal.signal(signal.SIGALRM, too_slow)
    total = failures = 0
    for name in names or TARGETS:
        own = max(1, round(count * TARGETS[name][1]))
        list(run_target(name, seed, 1))  # imports come before the limit
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + EXTRA_BYTES, -1))
        found = list(run_target(name, seed, own))
        print(*found[:2], f"{name}: {own} inputs, {len(found)} failures", sep="\n", flush=True)
        total, failures = total + own, failures + len(found)
    print(f"{total} inputs, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
