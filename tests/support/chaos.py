"""Small runs in random places with random faults that overlap: `make chaos`.

    python tests/support/chaos.py --minutes 10 --seed 1        # rounds with the seeds 1, 2, 3 ...
    python tests/support/chaos.py --round 7                    # one round again

A round repeats its command as a platform would, until it ends well. Each end must have a message
that names a fault that was there, within its time. Then the digest must be that of an undisturbed
run, the metrics must have no gap and no repeat, and nothing may be left behind. A round that fails
prints its seed.
"""

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import boto3

sys.path.append(str(Path(__file__).parents[2]))  # of benchmarks.link

from chaos_scene import (
    FAULTS,
    LIMITS,
    TASKS,
    Plan,
    Scene,
    build_scene,
    experiment_flags,
    names,
    possible,
    wait,
)
from fault_runs import assert_same_run
from helpers import Ended, paceline, result_of, wait_until
from image_folders import convert_here, write_images
from paceline.run_folder.finding import existing_run
from s3_server import KEYS, server

ATTEMPTS = 12
"""How often a command is repeated; faults happen in the first half."""
LIMIT_S = 480.0
"""An attempt may take so long after its last fault is over."""
LENGTHS = {"one process": 1.0, "ray": 1.8}
"""How long a run in a place takes, in units of the undisturbed one. Others: 1.3."""
SIGNALS = (0, -9, 137, -15, 143, -1, 129)
"""Codes of a good end and of signals."""


class Reference:
    """Undisturbed runs, each computed once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.records = folder, folder / "records"
        self.get = cache(self._get)
        write_images(folder / "images", per_class=90)
        convert_here(folder / "images", self.records)
        began = time.monotonic()
        self.get("gradients", False)
        self.seconds = time.monotonic() - began

    def _get(self, method: str, records: bool) -> Path:
        name = f"{method}-{records}"
        flags = experiment_flags(method, self.records if records else None)
        words = ("train", "smoke", "--run-dir", name, *flags)
        ended = paceline(*words, cwd=self._folder, timeout_s=1e6)
        assert ended.code == 0, ended
        return self._folder / name


def play(seed: int, s3: str, reference: Reference, counts: Counter[str]) -> bool:
    """Play one round to its end and count what happened; return whether it was good."""
    chance, happened, began = random.Random(seed), list[dict[str, Any]](), time.monotonic()
    plan = Plan.draw(chance)
    print(f"round {seed}: {plan}", flush=True)
    expected = reference.get(plan.method, plan.records)
    with ExitStack() as stack:
        try:
            scene = build_scene(plan, chance, stack, s3, reference.records)
            scene.happened = happened
            repeat_until_done(scene, reference.seconds)
            check_round(scene, expected)
        except AssertionError:
            print(f"round {seed} FAILED: {traceback.format_exc()[-4000:]}\nfaults:", flush=True)
            print(*happened, sep="\n", flush=True)
            return False
        finally:
            kinds = [each["fault"] for each in happened]
            counts.update([*kinds, f"on {plan.place}", f"output {plan.output}"])
            print(f"round {seed}: {time.monotonic() - began:.0f} s, {kinds}", flush=True)
    return True


def repeat_until_done(scene: Scene, unit_s: float) -> None:
    """Repeat the command as a platform would."""
    for attempt in range(ATTEMPTS):
        first = 0 if attempt else 2
        faults = [] if attempt >= ATTEMPTS // 2 else choose_faults(scene, first, unit_s)
        before = len(scene.happened)
        ended = run_attempt(scene, faults)
        check_attempt(ended, scene, {each["fault"] for each in scene.happened[before:]})
        if not any(each.code for each in ended):
            return
    raise AssertionError(f"it never ended well: {ended[0].err[-600:]}")


def choose_faults(scene: Scene, first: int, unit_s: float) -> list[tuple[str, float, float]]:
    """Return `first` to `first` + 3 names, when they begin, and how long they last."""
    names, chance = possible(scene), scene.chance
    length = 1.2 * unit_s * LENGTHS.get(scene.plan.place, 1.3)
    lasting = ((1, 12), (1, 12), (12, 30))
    return [
        (chance.choice(names), chance.uniform(0, length), chance.uniform(*chance.choice(lasting)))
        for _ in range(chance.randint(first, first + 3))
    ]


def run_attempt(scene: Scene, faults: list[tuple[str, float, float]]) -> list[Ended]:
    with commands(scene), ThreadPoolExecutor(8) as threads:
        scene.quiet_since = time.monotonic()
        happening = [threads.submit(later, scene, *fault) for fault in faults]
        ended = [wait(each, lambda: scene.quiet_since + LIMIT_S) for each in scene.running]
        for each in happening:
            each.result()
    return ended


@contextmanager
def commands(scene: Scene) -> Iterable[None]:
    """Start the commands of an attempt. Afterwards nothing of them is left, or else it fails."""
    scene.start()
    try:
        yield
        with suppress(AssertionError):
            wait_until(lambda: not scene.processes(), 30)
        assert not scene.processes(), f"processes are left: {names(scene.processes())}"
    finally:
        for each in (*scene.running, *scene.others):
            for pid in each.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        scene.others = []


def later(scene: Scene, name: str, begin: float, seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() - began < begin:
        time.sleep(0.2)
        if not any(each.is_running() for each in scene.running):
            return
    scene.quiet_since = max(scene.quiet_since, time.monotonic() + seconds)
    what = FAULTS[name][0](scene, seconds)
    scene.quiet_since = max(scene.quiet_since, time.monotonic())
    if what:
        scene.happened.append({"fault": name, "at": begin, "seconds": seconds, "what": what})


def check_attempt(ended: list[Ended], scene: Scene, faults: set[str]) -> None:
    """Check how the commands of an attempt ended: in one line that names a fault that was there."""
    causes, named, unnamed = "|".join(FAULTS[name][1] for name in faults), False, list[str]()
    for each in ended:
        text = each.err.strip()
        line = (text.splitlines() or [""])[-1]
        if each.code in SIGNALS:
            continue
        assert each.code in (1, 2), f"exit code {each.code}: {text[-800:]}"
        shown = line if scene.plan.place in TASKS else text  # their workers have no logs
        assert "Traceback" not in shown, f"a traceback: {text[-1500:]}"
        assert faults, f"it failed though nothing had happened: {line}"
        if re.search(causes, line):
            named = True
        else:
            unnamed.append(text[-800:])
    for text in unnamed:  # a task that lost another one leaves the cause to it
        explained = named and "another worker is gone" in text.splitlines()[-1]
        assert explained, f"no cause that was there is named: {text}"


def check_round(scene: Scene, expected: Path) -> None:
    """Check what is shown of the run, and that nothing else is left of it."""
    os.environ["PACELINE_CACHE"] = str(scene.folder / "reader")
    run = existing_run(scene.run_dir, checkpoints=False)
    assert result_of(run.path)["finished"]
    assert_same_run(run.path, expected)
    files = [] if scene.proxy else [str(path) for path in run.path.rglob("*")]
    left = [name for name in files if re.search(r"\.tmp|/\.[^/]*$", name)]
    assert not left, f"files are left: {left}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--round", type=int, help="play this round alone")
    options = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # commands would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cleans up
    os.environ |= LIMITS
    deadline = time.monotonic() + 60 * options.minutes
    failed, counts, began = list[int](), Counter[str](), time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-chaos-")))
        reference = Reference(folder)
        s3 = stack.enter_context(server())
        os.environ |= KEYS | {"AWS_ENDPOINT_URL": s3}
        boto3.client("s3").create_bucket(Bucket="bucket")
        seed, played = options.seed if options.round is None else options.round, 0
        while True:
            if not play(seed, s3, reference, counts):
                failed.append(seed)
            seed, played = seed + 1, played + 1
            if options.round is not None or time.monotonic() > deadline:
                break
    rate = 60 * played / (time.monotonic() - began)
    print(f"{played} rounds, {rate:.2f} a minute; {dict(counts.most_common())}")
    print(f"failed rounds: {failed or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
