"""Small trainings in random places with random faults that overlap: `make chaos`.

    python tests/chaos.py --minutes 10 --seed 1        # rounds with the seeds 1, 2, 3 ...
    python tests/chaos.py --round 7                    # one round again

A round repeats its command as a platform would, until it ends well. Then the digest must be that of
an undisturbed training, the metrics must have no gap and no repeat, and nothing may be left behind.
A round that fails prints its seed. Not a test itself: `tests/test_chaos.py` runs it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import fsspec

from chaos_faults import DISK_MB, FAULTS, Proxy, Scene, possible
from helpers import Ended, Program, free_addresses, paceline, program, tf_config
from s3_server import server

ATTEMPTS = 14
"""How often a command is repeated; faults happen in the first half."""
LIMIT_S = 240.0
"""No attempt may take longer."""
PLACES = ("one process", "local", "local", "local", "ps", "tf_config", "tf_config", "ray", "spark")
WEIGHTS = ("--sync.method", "weights", "--sync.every", "3")
QUICK = ("--stall-timeout", "20", "--start-timeout", "120")


@dataclass(frozen=True)
class Plan:
    """What happens in a round; it follows from the seed alone."""

    place: str
    workers: int
    method: str
    storage: str
    """memory (a small disk), s3 or disk."""
    records: bool
    """Whether the training reads TFRecords."""

    def __str__(self) -> str:
        data = "TFRecords" if self.records else "built-in data"
        return f"{self.place} x {self.workers}, {self.method}, run folder on {self.storage}, {data}"


def plan_of(chance: random.Random) -> Plan:
    place = chance.choice(PLACES)
    method = chance.choice(("gradients", "gradients", "weights"))
    storage = chance.choice(("disk", "small disk", "s3"))
    workers = 1 if place == "one process" else chance.randint(2, 4)
    if place in ("ray", "spark"):
        workers, storage = 2, "disk"
    if place == "ps":
        method = "gradients"
    return Plan(place, workers, method, storage, chance.random() < 0.4)


class Reference:
    """The digests of undisturbed trainings, each computed once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[tuple[str, bool], str] = {}
        self.records = folder / "records"

    def digest(self, method: str, records: bool) -> str:
        if (method, records) not in self._digests:
            flags = [*experiment_flags(method, self.records if records else None)]
            name = f"{method}-{records}"
            ended = paceline("train", "smoke", "--run-dir", name, *flags, cwd=self._folder)
            assert ended.code == 0, ended
            result = json.loads((self._folder / name / "result.json").read_text())
            self._digests[method, records] = result["state_sha256"]
        return self._digests[method, records]

    def make_records(self) -> None:
        """Write the data of `smoke` as pictures in TFRecords."""
        import numpy as np
        from PIL import Image

        chance = np.random.default_rng(0)
        for split, count in (("train", 272), ("val", 131)):
            for i in range(count):
                file = self._folder / "pictures" / split / f"class-{i % 3}" / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(chance.integers(0, 255, (16, 16, 3), np.uint8)).save(file)
        ended = paceline("data", "convert", "pictures", "records", cwd=self._folder)
        assert ended.code == 0, ended


def experiment_flags(method: str, records: Path | None) -> Iterator[str]:
    if method == "weights":
        yield from WEIGHTS
    if records:
        yield from ("--data.source", "tfrecord", "--data.dir", str(records))
        yield from ("--data.image-size", "16", "--data.padding", "0")


def place_flags(plan: Plan, master: str) -> list[str]:
    workers = ["--workers", str(plan.workers)]
    match plan.place:
        case "local":
            return workers
        case "ps":
            return [*workers, "--ps", "1"]
        case "ray":
            return ["--on", "ray", *workers]
        case "spark":
            slots = ["spark.cores.max=2", "spark.executor.cores=1", "spark.executor.memory=512m"]
            return ["--on", "spark", "--spark.master", master, "--spark.conf", *slots, *workers]
    return []


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def run_round(seed: int, reference: Reference, s3: str, master: str) -> collections.Counter[str]:
    """Play one round; return how often each fault happened. Raises AssertionError."""
    chance = random.Random(seed)
    plan = plan_of(chance)
    print(f"round {seed}: {plan}", flush=True)
    expected = reference.digest(plan.method, plan.records)
    folder = Path(tempfile.mkdtemp(prefix="paceline-chaos-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        scene = build_scene(plan, folder, seed, chance, reference, s3, stack)
        scene.flags += place_flags(plan, master)
        try:
            counts = repeat_until_done(plan, scene)
            check(scene, expected)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            history = "; ".join(scene.notes)
            raise AssertionError(f"{str(error)[:1500]}\n  what happened: {history}") from error
    return counts


def build_scene(
    plan: Plan,
    folder: Path,
    seed: int,
    chance: random.Random,
    reference: Reference,
    s3: str,
    stack: ExitStack,
) -> Scene:
    environment = {"PACELINE_CACHE": str(folder / "cache")}
    run_dir, proxy, disk, data = str(folder / "run"), None, None, None
    if plan.storage == "small disk":
        disk = stack.enter_context(small_disk(folder))
        run_dir = str(disk / "run")
    if plan.storage == "s3":
        proxy = Proxy(int(s3.rsplit(":", 1)[1]))
        stack.callback(proxy.close)
        run_dir = f"s3://bucket/{folder.name}"
        environment["AWS_ENDPOINT_URL"] = proxy.url
    if plan.records:
        data = folder / "records"
        shutil.copytree(reference.records, data)
    flags = ["train", "smoke", "--run-dir", run_dir, *QUICK]
    flags += experiment_flags(plan.method, data)
    return Scene(folder, flags, environment, chance, proxy, disk, data)


def repeat_until_done(plan: Plan, scene: Scene) -> collections.Counter[str]:
    """Repeat the command as a platform would; return how often each fault happened."""
    counts: collections.Counter[str] = collections.Counter()
    for attempt in range(ATTEMPTS):
        faults = [] if attempt >= ATTEMPTS // 2 else choose_faults(scene)
        counts.update(name for name, *_ in faults)
        began = time.monotonic()
        ended = run_attempt(plan, scene, faults)
        codes = [each.code for each in ended]
        scene.notes.append(f"exit codes {codes} after {time.monotonic() - began:.0f} s")
        if not any(codes):
            return counts
        for each in ended:
            unexpected = each.code == 2 and "Traceback" in each.err
            assert not unexpected, f"a traceback with exit code 2: {each.err}"
    raise AssertionError(f"it never ended well: {ended[0].err[-600:]}")


def choose_faults(scene: Scene) -> list[tuple[str, float, float]]:
    """Return names, when they begin, and how long they last."""
    names = possible(scene)
    return [
        (scene.chance.choice(names), scene.chance.uniform(0, 25), scene.chance.uniform(1, 12))
        for _ in range(scene.chance.randint(0, 4))
    ]


def run_attempt(plan: Plan, scene: Scene, faults: list[tuple[str, float, float]]) -> list[Ended]:
    with ExitStack() as stack:
        scene.running = [
            stack.enter_context(
                program(*scene.flags, cwd=scene.folder, environment=scene.environment | environment)
            )
            for environment in task_environments(plan)
        ]
        threads = [
            threading.Thread(target=later, args=(scene, *fault), daemon=True) for fault in faults
        ]
        for thread in threads:
            thread.start()
        ended = wait_for_all(scene.running)
        for thread in threads:
            thread.join(150)
    return ended


def wait_for_all(running: list[Program]) -> list[Ended]:
    deadline = time.monotonic() + LIMIT_S
    return [each.wait(max(1.0, deadline - time.monotonic())) for each in running]


def task_environments(plan: Plan) -> list[dict[str, str]]:
    if plan.place != "tf_config":
        return [{}]
    cluster = {"worker": free_addresses(plan.workers)}
    return [tf_config(cluster, "worker", i, model_dir="") for i in range(plan.workers)]


def later(scene: Scene, name: str, begin: float, seconds: float) -> None:
    time.sleep(begin)
    if any(each.is_running() for each in scene.running):
        FAULTS[name](scene, seconds)


def check(scene: Scene, expected: str) -> None:
    run_dir = scene.flags[scene.flags.index("--run-dir") + 1]
    environment = os.environ | scene.environment
    code = (
        "import json, sys; from paceline.run_folder.finding import existing_run; "
        "run = existing_run(sys.argv[1], checkpoints=False); "
        "print(json.dumps([run.read_result(), run.metrics.read()]))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, run_dir], env=environment, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    result, metrics = json.loads(shown.stdout)
    assert result["finished"], result
    assert result["state_sha256"] == expected, "another digest"
    steps = [record["step"] for record in metrics]
    assert steps == sorted(set(steps)), f"steps repeat: {steps}"
    assert steps[-1] == result["step"], steps
    evaluated = [record["step"] for record in metrics if "test_loss" in record]
    assert evaluated[-1] == result["step"], evaluated
    assert len(evaluated) == 3, f"evaluations: {evaluated}"
    assert not scene.processes(), "processes are left"


def spark_master(folder: Path, stack: ExitStack) -> str:
    """Start a Spark cluster that ends with this process; return its URL."""
    (folder / "spark").mkdir()
    script = Path(__file__).with_name("spark_cluster.py")
    process = subprocess.Popen([sys.executable, script, folder / "spark", str(os.getpid())])
    stack.callback(process.wait)
    stack.callback(process.terminate)
    deadline = time.monotonic() + 120
    while not (folder / "spark" / "url").exists():
        assert time.monotonic() < deadline, "Spark did not start"
        time.sleep(0.2)
    return (folder / "spark" / "url").read_text().strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--round", type=int, help="play this round alone")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    counts: collections.Counter[str] = collections.Counter()
    failed, seed = [], options.round or options.seed
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-chaos-")))
        s3 = stack.enter_context(server())
        os.environ |= {
            "AWS_ENDPOINT_URL": s3,
            "AWS_ACCESS_KEY_ID": "us",
            "AWS_SECRET_ACCESS_KEY": "er",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        fsspec.filesystem("s3").mkdir("bucket")
        reference = Reference(folder)
        reference.make_records()
        master = spark_master(folder, stack)
        rounds = 0
        while time.monotonic() < deadline:
            rounds += 1
            try:
                counts += run_round(seed, reference, s3, master)
            except AssertionError as error:
                failed.append(seed)
                print(f"round {seed} FAILED: {error}", flush=True)
            if options.round:
                break
            seed += 1
    print(f"{rounds} rounds, {sum(counts.values())} faults: {dict(counts)}")
    print(f"failed: {failed or 'none'}" + (" (replay with --round SEED)" if failed else ""))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
