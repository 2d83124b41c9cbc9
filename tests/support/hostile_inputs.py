"""Everything that comes from outside, mutated: the readers without TensorFlow, in this process.

`python hostile_inputs.py SEED COUNT [TARGET...]` gives COUNT mutated inputs to each target, within
limits of memory and time. A target either accepts an input, and then what it read must be right, or
it raises a UserError of one line. Anything else is printed with the input, and the exit code is 1.
Not a test itself: `test_hostile_input.py` runs it.
"""

import io
import json
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

import hostile_data
from mutations import (
    Try,
    bytes_or_json,
    damaged,
    each_refused,
    json_input,
    mutate,
    mutate_json,
    reading,
)
from paceline.chief import find_finished
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.report.report_page import render_page
from paceline.extras.report.run_data import read_run
from paceline.maths.state import State, StateLayout
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.given_weights import newest_variables
from paceline.run_folder.listing import list_runs
from paceline.storage.files import CHECKSUM, sealed, unsealed
from paceline.storage.lease import Lease, parse_lease
from paceline.storage.lock import Owner
from report_runs import make_run

SECONDS_PER_INPUT = 10
"""Of CPU time."""
EXTRA_BYTES = 1 << 30
"""Memory that an input may take beyond what the readers have at the start."""

LAYOUT = StateLayout({"params": (("a", (3, 2)), ("b", ())), "stats": (("m", (4,)),)})


class TooSlow(BaseException):
    """An input took longer than its limit."""


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


def config(folder: Path) -> Try:
    return sealed_json(folder, "config.json", lambda run: run.experiment().to_json())


def result(folder: Path) -> Try:
    return sealed_json(folder, "result.json", lambda run: run.read_result())


def metrics(folder: Path) -> Try:
    """Lines whose bytes are damaged, or their values without a checksum."""
    run = small_run(folder)
    records, whole = run.metrics.read(), run.metrics.path.read_bytes()
    seals = [True]

    def content_of(chance: random.Random) -> bytes:
        seals.append(chance.random() < 0.5)
        if seals[-1]:
            return mutate(whole, chance)
        lines = [json.dumps(mutate_json(each, chance)) + "\n" for each in records]
        return "".join(lines).encode("utf-8", "surrogatepass")

    def read(content: bytes) -> None:
        assert not seals[-1] or all(each in records for each in run.metrics.read())
        show(run, content)

    return reading(content_of, read, run.metrics.path)


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


def lease(folder: Path) -> Try:
    """lease.json of a remote run folder."""
    original = Lease(Owner(1, "h", "t", 3), True, 7, {"a.json": "attempts/3/1/a"})

    def read(content: bytes) -> None:
        found = parse_lease(content, "s3://bucket/run")
        assert parse_lease(found.to_bytes(), "s3://bucket/run") == found
        assert found.epoch + 1 > found.epoch > 0
        assert not any(".." in key.split("/") for key in found.files.values())

    return reading(bytes_or_json(json.loads(original.to_bytes())), read)


TARGETS: dict[str, tuple[Callable[[Path], Try], float]] = {
    "config": (config, 0.15),
    "result": (result, 0.15),
    "metrics": (metrics, 0.15),
    "evaluation": (evaluation, 0.15),
    "checkpoint": (checkpoint, 0.6),
    "lease": (lease, 2.0),
    "records": (hostile_data.records, 0.2),
    "cifar_files": (hostile_data.cifar_files, 2.0),
    "array_files": (hostile_data.array_files, 0.5),
    "images": (hostile_data.images, 3.0),
}
"""Name -> the target, and its share: some read faster than others."""


def run_target(name: str, seed: int, count: int) -> Iterator[str]:
    """Yield what is wrong: the input, and the traceback."""
    with tempfile.TemporaryDirectory(prefix="paceline-hostile-") as folder:
        attempt = TARGETS[name][0](Path(folder))
        for number in range(count):
            content = b"(lost)"
            signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INPUT)
            try:
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    content = attempt(random.Random(f"{name} {seed} {number}"))
            except (Exception, TooSlow):
                signal.setitimer(signal.ITIMER_PROF, 0)
                where = f"{name}, seed {seed}, input {number}: {content[:500]!r}"
                yield f"{where}\n{traceback.format_exc()[-3000:]}"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)


def main(seed: int, count: int, names: list[str]) -> int:
    def too_slow(*_: Any) -> None:
        raise TooSlow(f"longer than {SECONDS_PER_INPUT} s")

    signal.signal(signal.SIGPROF, too_slow)
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
