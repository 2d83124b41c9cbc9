"""Everything that comes from outside, mutated: the readers without TensorFlow, in this process.
Targets through the command line are in `hostile_commands.py`.

`python hostile_inputs.py SEED COUNT [TARGET...]` gives COUNT mutated inputs to each target, within
limits of memory and time. A target either accepts an input, and then what it read must be right, or
it raises a UserError of one line. Anything else is printed with the input, and the exit code is 1.
Not a test itself: `test_hostile_input.py` runs it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hostile_commands import COMMAND_TARGETS
from mutations import json_input, mutate, mutate_json
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment, Records
from paceline.experiment.fields import diff, from_json, to_json
from paceline.extras.report.report_page import render_page
from paceline.extras.report.run_data import read_run
from paceline.formats import arrays, cifar
from paceline.formats.convert import read_label_file
from paceline.formats.fetch import unpack_archive
from paceline.formats.image_file import inspect_image
from paceline.formats.tfrecord import example
from paceline.formats.tfrecord.frames import framed
from paceline.formats.tfrecord.index import load_index
from paceline.formats.tfrecord.shards import complete_keys, noted_keys, read_labels, train_and_test
from paceline.job import Job, Place, Run
from paceline.maths.state import State, StateLayout
from paceline.places.tf_config import parse_tf_config
from paceline.results.image_bytes import as_jpeg_or_png, to_png
from paceline.run_folder.checkpoints import Checkpoints, newest_variables
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.listing import list_runs
from paceline.storage.files import CHECKSUM, sealed, unsealed
from paceline.storage.lease import Lease, parse_lease
from paceline.storage.lock import Owner
from report_runs import make_run

SECONDS_PER_INPUT = 10
EXTRA_BYTES = 1 << 30
"""Memory that an input may take beyond what the readers have at the start."""

Try = Callable[[random.Random], bytes]
"""Mutates an input, gives it to the readers, checks what they return; returns the input."""


class TooSlow(BaseException):
    """An input took longer than its limit."""


def keeps_checksum(content: bytes, original: dict[str, Any]) -> bool:
    """Return whether the content has the original's checksum: then nothing may differ."""
    return f'"{CHECKSUM}": "{sealed(original)[CHECKSUM]}"'.encode() in content


def show(root: Path, run: RunFolder, chance: random.Random) -> None:
    """List all runs and read this one for a report; draw the page, which takes long, sometimes."""
    with each_refused():
        list_runs(root)
    with each_refused():
        read = read_run(run)
        if chance.random() < 0.1:
            render_page([read]).encode(errors="backslashreplace")


def fuzz_config(folder: Path) -> Try:
    path = make_run(folder / "runs" / "one", records=8, examples=20, side=4)
    original = unsealed(json.loads((path / "config.json").read_text()))
    truth = RunFolder(path).experiment().to_json()

    def attempt(chance: random.Random) -> bytes:
        content = json_input(original, chance)
        (path / "config.json").write_bytes(content)
        run = RunFolder(path)
        with each_refused():
            found = run.experiment().to_json()
            assert not keeps_checksum(content, original) or not diff(found, truth)
            run.data_facts()
        show(folder / "runs", run, chance)
        return content

    return attempt


def fuzz_result(folder: Path) -> Try:
    path = make_run(folder / "runs" / "one", records=8, examples=20, side=4)
    original = unsealed(json.loads((path / "result.json").read_text()))

    def attempt(chance: random.Random) -> bytes:
        content = json_input(original, chance)
        (path / "result.json").write_bytes(content)
        with each_refused():
            found = RunFolder(path).read_result()
            assert not keeps_checksum(content, original) or found == original
        show(folder / "runs", RunFolder(path), chance)
        return content

    return attempt


def fuzz_metrics(folder: Path) -> Try:
    path = make_run(folder / "runs" / "one", records=8, examples=20, side=4)
    run = RunFolder(path)
    run.metrics.truncate(10**9)  # seals the lines
    whole, starts = (path / "metrics.jsonl").read_bytes(), (path / "starts.jsonl").read_bytes()
    records = run.metrics.read()

    def attempt(chance: random.Random) -> bytes:
        content = mutate(whole, chance)
        sealed_lines = chance.random() < 0.5
        if not sealed_lines:
            lines = [mutate_json(each, chance) for each in records]
            text = "".join(json.dumps(each) + "\n" for each in lines)
            content = text.encode("utf-8", "surrogatepass")
        (path / chance.choice(("metrics.jsonl", "starts.jsonl"))).write_bytes(content)
        if sealed_lines and (path / "metrics.jsonl").read_bytes() == content:
            assert all(each in records for each in run.metrics.read())
        show(folder / "runs", run, chance)
        (path / "metrics.jsonl").write_bytes(whole)
        (path / "starts.jsonl").write_bytes(starts)
        return content

    return attempt


def fuzz_evaluation(folder: Path) -> Try:
    path = make_run(folder / "one", records=4, examples=30, side=4)
    run = RunFolder(path)
    whole, truth = (path / "evaluation.npz").read_bytes(), run.predictions.read()
    assert truth is not None

    def attempt(chance: random.Random) -> bytes:
        content = mutate(whole, chance)
        (path / "evaluation.npz").write_bytes(content)
        found = run.predictions.read() or {}
        for name in found.keys() & truth.keys():
            np.testing.assert_array_equal(found[name], truth[name])
        show(folder / "runs", run, chance)
        return content

    return attempt


LAYOUT = StateLayout({"params": (("a", (3, 2)), ("b", ())), "stats": (("m", (4,)),)})


def fuzz_checkpoint(folder: Path) -> Try:
    state = State(7, {"params": np.arange(7, dtype=np.float32), "stats": np.ones(4, np.float32)})
    checkpoints = Checkpoints(folder, LAYOUT, warn=lambda text: None)
    path = checkpoints.save(state, metric=0.5)
    whole = path.read_bytes()
    variables = newest_variables(folder, ("params", "stats"))

    def attempt(chance: random.Random) -> bytes:
        content = mutate(whole, chance)
        path.write_bytes(content)
        with each_refused():
            found = checkpoints.latest() or state
            assert found.sha256() == state.sha256()
        with each_refused():
            checkpoints.choose("best")
        with each_refused(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, value in newest_variables(folder, ("params", "stats")).items():
                np.testing.assert_array_equal(value, variables[name])
        return content

    return attempt


def fuzz_records(folder: Path) -> Try:
    """Shards, their index, labels.txt and dataset.json."""
    pieces = [
        framed(example.encode({"image/encoded": bytes([k]) * 9, "image/class/label": k}))
        for k in range(5)
    ]
    notes = {"image_key": "image/encoded", "first_label": 0, "raw_shape": [1, 3, 3]}
    keys = ("image/encoded", "image/class/label")

    def restore() -> None:
        for name in ("train-00000-of-00001", "validation-00000-of-00001"):
            (folder / name).write_bytes(b"".join(pieces))
        (folder / "labels.txt").write_text("0:cat\n1:dog\n2:cow\n")
        (folder / "dataset.json").write_text(json.dumps(notes))
        (folder / ".paceline-index.npz").unlink(missing_ok=True)

    restore()
    wholes = {path.name: path.read_bytes() for path in folder.iterdir()}
    shards = [shard for found in train_and_test(str(folder)).values() for shard in found]
    truth = load_index(str(folder), shards, keys)
    wholes[".paceline-index.npz"] = (folder / ".paceline-index.npz").read_bytes()

    def attempt(chance: random.Random) -> bytes:
        name = chance.choice(list(wholes))
        content = mutate(wholes[name], chance)
        if name == "dataset.json" and chance.random() < 0.5:
            content = json.dumps(mutate_json(notes, chance)).encode("utf-8", "surrogatepass")
        (folder / name).write_bytes(content)
        with each_refused():
            complete_keys(Records(), noted_keys(str(folder)))
        with each_refused():
            assert len(read_labels(str(folder))) <= content.count(b"\n") + 4
        with each_refused():
            found = train_and_test(str(folder))
            shards = [shard for split in found.values() for shard in split]
            parts = load_index(str(folder), shards, keys, skip_bad=chance.random() < 0.5)
            if name == ".paceline-index.npz":
                for part, right in zip(parts, truth, strict=True):
                    assert part.offsets.tolist() == right.offsets.tolist()
                    assert part.labels.tolist() == right.labels.tolist()
        restore()
        return content

    return attempt


def fuzz_pickles(folder: Path) -> Try:
    layout = next(each for each in cifar.LAYOUTS if each.folder == "cifar-10-batches-py")
    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    content = {b"data": pixels, b"labels": [3, 9], b"filenames": [b"a.png", b"b.png"]}
    seeds = [pickle.dumps(content, protocol) for protocol in range(6)]
    seeds += [
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of two billion places
        b"cbuiltins\nbytes\n(I1000000000000\ntR.",
        b"cnumpy\ndtype\n(VO8\nI0\nI1\ntR(I3\nV|\nNNNI-1\nI-1\nI63\ntb.",
        b"\x80\x03\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    ]
    file = folder / "data_batch_1"

    def attempt(chance: random.Random) -> bytes:
        content = chance.choice(seeds)
        content = mutate(content, chance) if chance.random() < 0.99 else content
        file.write_bytes(content)
        with each_refused():
            images, labels = cifar.read_file(layout, file)
            assert (images.shape[1:], images.dtype) == ((32, 32, 3), np.uint8)
            assert len(labels) == len(images)
            assert 0 <= labels.min() <= labels.max() < 10
        return content

    return attempt


def fuzz_cifar_binary(folder: Path) -> Try:
    layout = next(each for each in cifar.LAYOUTS if each.folder == "cifar-10-batches-bin")
    whole = b"".join(bytes([label]) + bytes(3072) for label in (1, 2))
    file = folder / "data_batch_1.bin"

    def attempt(chance: random.Random) -> bytes:
        content = mutate(whole, chance)
        file.write_bytes(content)
        with each_refused():
            assert cifar.read_file(layout, file)[1].max() < 10
        return content

    return attempt


def fuzz_arrays(folder: Path) -> Try:
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


def fuzz_images(folder: Path) -> Try:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 3), np.uint8)
    seeds = [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"]
    for kind in ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM"):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        seeds.append(file.getvalue())

    def attempt(chance: random.Random) -> bytes:
        content = mutate(chance.choice(seeds), chance)
        with suppress(ValueError):
            if not content.startswith(b"%!PS"):
                as_jpeg_or_png(content)
                to_png(content)
            else:
                assert not as_jpeg_or_png(content), "an EPS file was read"
        with suppress(ValueError):
            assert inspect_image(content).height > 0
        return content

    return attempt


def fuzz_archives(folder: Path) -> Try:
    layout = next(each for each in cifar.LAYOUTS if each.folder == "cifar-10-batches-bin")
    plain, packed = io.BytesIO(), io.BytesIO()
    for file, mode in ((plain, "w"), (packed, "w:gz")):
        with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
            for name in layout.files:
                entry = tarfile.TarInfo(f"{layout.folder}/{name}")
                entry.size = 20
                archive.addfile(entry, io.BytesIO(bytes(20)))

    def attempt(chance: random.Random) -> bytes:
        content = mutate(chance.choice((plain, packed)).getvalue(), chance)
        place = Path(tempfile.mkdtemp(dir=folder))
        (place / "archive").write_bytes(content)
        with each_refused():
            assert all(
                (unpack_archive(place / "archive", layout) / n).is_file() for n in layout.files
            )
        assert sorted(os.listdir(folder)) == [place.name], "it wrote outside its folder"
        shutil.rmtree(place)
        return content

    return attempt


def fuzz_tf_config(folder: Path) -> Try:
    original = {
        "cluster": {"chief": ["a:1"], "worker": ["b:2", "[::1]:3"], "ps": ["c:4"]},
        "task": {"type": "worker", "index": "1"},
        "model_dir": "x",
    }

    def attempt(chance: random.Random) -> bytes:
        text = json.dumps(mutate_json(original, chance))
        if chance.random() < 0.5:
            text = mutate(json.dumps(original).encode(), chance).decode(errors="surrogateescape")
        with each_refused():
            cluster, _ = parse_tf_config(text)
            assert cluster.role == "evaluator" or cluster.address.count(":")
        return text.encode(errors="surrogateescape")

    return attempt


def fuzz_lease(folder: Path) -> Try:
    """lease.json of a remote run folder."""
    original = Lease(Owner(1, "h", "t", 3), True, 7, {"a.json": "attempts/3/1/a"})
    whole = original.to_bytes()

    def attempt(chance: random.Random) -> bytes:
        content = mutate(whole, chance)
        if chance.random() < 0.5:
            changed = mutate_json(json.loads(whole), chance)
            content = json.dumps(changed).encode("utf-8", "surrogatepass")
        with each_refused():
            found = parse_lease(content, "s3://bucket/run")
            assert parse_lease(found.to_bytes(), "s3://bucket/run") == found
            assert found.epoch + 1 > found.epoch > 0
            assert not any(".." in key.split("/") for key in found.files.values())
        return content

    return attempt


def fuzz_label_files(folder: Path) -> Try:
    whole, names = b"ImageId,PredictionString\na,n01 1 2 3 4\nb,n02 1 2 3 4\n", ["a.jpg", "b.jpg"]

    def attempt(chance: random.Random) -> bytes:
        content = mutate(chance.choice((whole, b"a.jpg n01\nb.jpg n02\n")), chance)
        (folder / "labels").write_bytes(content)
        with each_refused():
            assert list(read_label_file(folder / "labels", names)) == names
        return content

    return attempt


def fuzz_jobs(folder: Path) -> Try:
    """Experiments, places and runs in JSON."""
    from paceline.experiment.recipes.table import get_recipe

    kinds: tuple[type, ...] = (Experiment, Experiment, Place, Run)
    originals = {Experiment: get_recipe("smoke").to_json(), Place: to_json(Place()), Run: {}}
    originals[Run] = to_json(Run())

    def attempt(chance: random.Random) -> bytes:
        kind = chance.choice(kinds)
        value = mutate_json(originals[kind], chance)
        with each_refused():
            made = from_json(kind, value)
            if kind is Experiment:
                assert from_json(Experiment, made.to_json()) == made
            else:
                Job(Experiment(), **{kind.__name__.lower(): made})
        return json.dumps(value).encode("utf-8", "surrogatepass")

    return attempt


TARGETS: dict[str, tuple[Callable[[Path], Try], float]] = {
    "config": (fuzz_config, 0.15),
    "result": (fuzz_result, 0.15),
    "metrics": (fuzz_metrics, 0.15),
    "evaluation": (fuzz_evaluation, 0.15),
    "checkpoint": (fuzz_checkpoint, 0.6),
    "records": (fuzz_records, 0.2),
    "pickles": (fuzz_pickles, 2.0),
    "cifar binary": (fuzz_cifar_binary, 0.4),
    "arrays": (fuzz_arrays, 0.5),
    "images": (fuzz_images, 3.0),
    "archives": (fuzz_archives, 0.15),
    "tf_config": (fuzz_tf_config, 2.0),
    "label files": (fuzz_label_files, 1.5),
    "lease": (fuzz_lease, 2.0),
    "jobs": (fuzz_jobs, 2.0),
    **COMMAND_TARGETS,
}
"""Name -> the target, and its share: some read faster than others."""


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
                yield (
                    f"{name}, seed {seed}, input {number}: {content[:500]!r}\n"
                    + (traceback.format_exc()[-3000:])
                )
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
        began, found = time.monotonic(), 0
        for failure in run_target(name, seed, own):
            found += 1
            if found <= 2:
                print(failure, flush=True)
        took_s = time.monotonic() - began
        print(f"{name}: {own} inputs, {found} failures, {took_s:.1f} s", flush=True)
        total, failures = total + own, failures + found
    print(f"{total} inputs, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
