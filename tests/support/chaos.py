"""Small trainings in random places with random faults that overlap: `make chaos`.

    python tests/support/chaos.py --minutes 10 --seed 1        # rounds with the seeds 1, 2, 3 ...
    python tests/support/chaos.py --round 7                    # one round again
    python tests/support/chaos.py --count FILE...              # add up the rounds of several plays

A round repeats its command as a platform would, until it ends well. Each end must have a message
that names a fault that was there, within its time. Then the digest must be that of an undisturbed
training, the metrics must have no gap and no repeat, and nothing may be left behind. A round that
fails prints its seed. `--log FILE` appends a line of JSON for each round. Not a test itself:
`tests/faults/test_chaos.py` runs it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import boto3

sys.path.append(str(Path(__file__).parents[2]))  # for `benchmarks`

from benchmarks.slurm_cluster import WHY_NOT as NO_SLURM
from benchmarks.slurm_cluster import slurm_cluster

from chaos_checks import (
    KILLED_CODES,
    check_attempt,
    check_objects,
    check_round,
    check_temporary_files,
    ports_of,
)
from chaos_clock import CLOCK
from chaos_faults import FAULTS, possible, states, wait
from chaos_reference import Reference
from chaos_scene import (
    LIMITS,
    Plan,
    Scene,
    World,
    build_scene,
    plan_of,
    possible_places,
    start_spark,
)
from helpers import Ended
from s3_server import server

ATTEMPTS = 12
"""How often a command is repeated; faults happen in the first half."""
LIMIT_S = 480.0
"""An attempt may take so long after its last fault is over."""
GONE_S = 30.0
"""No process may be left so long after the commands have ended."""
LENGTHS = {"one process": 1.0, "ray": 1.8, "spark": 2.0, "slurm": 1.5}
"""How long a training in a place takes, in units of the undisturbed one. Others: 1.3."""


@dataclass
class Round:
    """What is noted of a round: a line of JSON."""

    seed: int
    plan: Plan
    faults: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    result: str = "ok"
    seconds: float = 0.0
    paused: float = 0.0
    """Seconds in which the machine paused everything; limits of the program went on."""

    @property
    def killed(self) -> bool:
        """Whether a command itself was killed: it could not remove anything."""
        codes = {code for attempt in self.attempts for code in attempt["codes"]}
        return not codes.isdisjoint(KILLED_CODES)


def play(seed: int, plan: Plan, chance: random.Random, world: World, reference: Reference) -> Round:
    """Play one round to its end, good or bad."""
    expected = reference.get(plan.method, plan.records)
    played, began, paused = Round(seed, plan), CLOCK.now(), CLOCK.paused
    with ExitStack() as stack:
        try:
            scene = build_scene(plan, chance, world, stack)
            played.faults = scene.happened
            repeat_until_done(scene, played)
            check_round(scene, expected)
            played.left = check_temporary_files(scene, played.killed)
        except AssertionError as error:
            played.result = str(error)[:3000] or repr(error)
    played.seconds = round(CLOCK.now() - began)
    played.paused = round(CLOCK.paused - paused)
    return played


def repeat_until_done(scene: Scene, played: Round) -> None:
    """Repeat the command as a platform would."""
    for attempt in range(ATTEMPTS):
        faults = [] if attempt >= ATTEMPTS // 2 else choose_faults(scene, 0 if attempt else 2)
        began, before, paused = CLOCK.now(), len(scene.happened), CLOCK.paused
        ended = run_attempt(scene, faults)
        lines = [(each.err.strip().splitlines() or [""])[-1][:300] for each in ended]
        note = {"codes": [each.code for each in ended], "lines": [x for x in lines if x]}
        played.attempts.append(note | {"seconds": round(CLOCK.now() - began)})
        if pause := round(CLOCK.paused - paused):  # everything was stopped, and went on
            what = {"at": 0.0, "seconds": pause, "what": "the machine paused everything"}
            scene.happened.append({"fault": "pause"} | what)
        logs = scene.plan.place not in ("tf_config", "hosts", "slurm")
        check_attempt(ended, scene.happened[before:], logs)
        if not any(each.code for each in ended):
            if len(scene.happened) == before:
                check_objects(scene)
                # the machine may be busier than before, or less
                scene.world.unit_s = (CLOCK.now() - began) / LENGTHS.get(scene.plan.place, 1.3)
            return
    raise AssertionError(f"it never ended well: {ended[0].err[-600:]}")


def choose_faults(scene: Scene, first: int) -> list[tuple[str, float, float]]:
    """Return `first` to `first` + 3 names, when they begin, and how long they last."""
    names, chance = possible(scene), scene.chance
    length = 1.2 * scene.world.unit_s * LENGTHS.get(scene.plan.place, 1.3)
    return [
        (
            chance.choice(names),
            chance.uniform(0, length),
            chance.uniform(1, 12) if chance.random() < 0.7 else chance.uniform(12, 30),
        )
        for _ in range(chance.randint(first, first + 3))
    ]


def run_attempt(scene: Scene, faults: list[tuple[str, float, float]]) -> list[Ended]:
    failures: list[BaseException] = []
    with commands(scene):
        began = CLOCK.now()
        scene.quiet_since = began
        threads = [
            threading.Thread(target=later, args=(scene, failures, *fault), daemon=True)
            for fault in faults
        ]
        for thread in threads:
            thread.start()
        ended = [
            wait(each, lambda: scene.quiet_since + LIMIT_S, "the command") for each in scene.running
        ]
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
    return ended


@contextmanager
def commands(scene: Scene) -> Iterable[None]:
    """Start the commands of an attempt. Afterwards nothing of them is left, or else it fails."""
    scene.start()
    try:
        yield
        CLOCK.wait_until(
            lambda: not scene.processes(),
            GONE_S,
            lambda: f"processes are left: {states(scene.processes())}",
        )
    finally:
        for each in (*scene.running, *scene.others):
            for pid in each.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        scene.others = []


def later(
    scene: Scene, failures: list[BaseException], name: str, begin: float, seconds: float
) -> None:
    began = CLOCK.now()
    while CLOCK.now() - began < begin:
        time.sleep(0.2)
        if not any(each.is_running() for each in scene.running):
            return
    scene.ports |= ports_of(scene.processes())
    scene.quiet_since = max(scene.quiet_since, CLOCK.now() + seconds)
    try:
        what = FAULTS[name](scene, seconds)
    except BaseException as error:
        failures.append(error)
        return
    scene.quiet_since = max(scene.quiet_since, CLOCK.now())
    if what:
        scene.happened.append(
            {"fault": name, "at": round(begin, 1), "seconds": round(seconds, 1), "what": what}
        )


@contextmanager
def world_of(folder: Path, reference: Reference, places: Iterable[str]) -> Iterable[World]:
    """Start what all rounds share: S3, Spark, Slurm."""
    with ExitStack() as stack:
        s3 = stack.enter_context(server())
        os.environ |= {
            "AWS_ENDPOINT_URL": s3,
            "AWS_ACCESS_KEY_ID": "us",
            "AWS_SECRET_ACCESS_KEY": "er",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        boto3.client("s3").create_bucket(Bucket="bucket")
        master, slurm = cache(lambda: start_spark(folder / "spark", stack)), {}
        if "slurm" in places and not NO_SLURM:
            slurm = stack.enter_context(slurm_cluster(folder / "slurm")).environment
        yield World(s3, master, slurm, reference.records, reference.unit_s)


def count(files: list[str]) -> str:
    """Return the sums over the rounds in some files."""
    rounds = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    bad = [each for each in rounds if each["result"] != "ok"]
    lines = [f"{len(rounds)} rounds in {sum(each['seconds'] for each in rounds) / 60:.0f} minutes"]
    tables = {
        "rounds by place": (each["plan"]["place"] for each in rounds),
        "rounds by run folder": (each["plan"]["storage"] for each in rounds),
        "rounds by workers": (each["plan"]["workers"] for each in rounds),
        "faults": (fault["fault"] for each in rounds for fault in each["faults"]),
        "commands": (len(each["attempts"]) for each in rounds for _ in each["attempts"][:1]),
    }
    for title, values in tables.items():
        counts = collections.Counter(values)
        lines.append(f"{title}: " + ", ".join(f"{k} {n}" for k, n in sorted(counts.items())))
    lines.append(f"failed: {[each['seed'] for each in bad] or 'none'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--round", type=int, help="play this round alone")
    parser.add_argument(
        "--place", help="play in this place alone; the seeds then mean other rounds"
    )
    parser.add_argument("--log", type=Path, help="append a line of JSON for each round")
    parser.add_argument("--count", nargs="+", help="add up such files")
    options = parser.parse_args()
    if options.count:
        print(count(options.count))
        return 0
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # commands would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cleans up
    os.environ |= LIMITS
    deadline = CLOCK.now() + 60 * options.minutes
    places = (options.place,) if options.place else possible_places()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-chaos-")))
        log = options.log or folder / "log"
        reference = Reference(folder)
        world = stack.enter_context(world_of(folder, reference, places))
        seed = options.seed if options.round is None else options.round
        failed = False
        while True:
            chance = random.Random(seed)
            plan = plan_of(chance, places)
            print(f"round {seed}: {plan}", flush=True)
            played = play(seed, plan, chance, world, reference)
            with open(log, "a") as file:
                file.write(json.dumps(asdict(played)) + "\n")
            if played.result != "ok":
                failed = True
                print(f"round {seed} FAILED: {json.dumps(asdict(played), indent=1)}", flush=True)
            seed += 1
            if options.round is not None or CLOCK.now() > deadline:
                break
        print(count([str(log)]))
        return failed


if __name__ == "__main__":
    sys.exit(main())
