"""One history: commands, the faults that happen to them, and the invariants. Start reading here.

A seed decides everything. The same command is repeated, as a person or a platform would, until it
ends well. Faults happen in the first attempts only.
"""

import re
import shutil
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import Interrupted, WorkerFailed
from paceline.run_folder.records import RecordFile
from paceline.storage.files import read_json
from paceline.storage.lease import parse_lease

from .faults import FAULTS, Fault, explains, happen
from .machine import patched
from .scene import Command, Scene
from .training import undisturbed
from .world import ACTIVE, Violation

ATTEMPTS, DISTURBED = 10, 5
LONGEST_S = 20_000.0
"""Of one attempt: it is never reached unless something waits for ever."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass
class Played:
    """What a history showed. Without a violation, `violation` is empty."""

    seed: int
    lines: list[str]
    violation: str
    faults: int


def play(seed: int) -> Played:
    """Play the history of a seed."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-simulation-", dir=MEMORY))
    scene, violation = Scene(seed, folder), ""
    ACTIVE.append(scene)
    try:
        with patched():
            try:
                repeat_until_done(scene)
                check_run(scene)
            except Violation as found:
                violation = str(found)
            except Exception as error:
                scene.lines += traceback.format_exc().splitlines()
                violation = f"{type(error).__name__}: {error}"
            scene.close()
    finally:
        ACTIVE.pop()
        shutil.rmtree(folder, ignore_errors=True)
    return Played(seed, scene.lines, violation, len(scene.happened))


def repeat_until_done(scene: Scene) -> None:
    """Repeat the command until it ends well."""
    for attempt in range(ATTEMPTS):
        faults = choose_faults(scene, attempt) if attempt < DISTURBED else []
        if attempt >= DISTURBED:
            wait_until_quiet(scene)
        began = scene.now
        commands = run_attempt(scene, faults)
        check_attempt(scene, commands, [each for each in scene.happened if each.end >= began - 1.0])
        if all(each.process.code == 0 for each in commands):
            return
    raise Violation("it never ended well")


def wait_until_quiet(scene: Scene) -> None:
    """Wait as a person does who knows that storage is down."""
    for fault in scene.happened:
        if scene.now < fault.end < float("inf"):
            scene.at(fault.end - scene.now + 0.001, lambda: None)
    scene.run(lambda: all(each.end <= scene.now for each in scene.happened), scene.now + LONGEST_S)


def choose_faults(scene: Scene, attempt: int) -> list[tuple[str, float, float]]:
    """Return names, when each begins, and how long it lasts."""
    chance = scene.chance
    number = chance.randint(0 if attempt else 1, 3)
    lasting = ((0.5, 12.0), (12.0, 60.0), (60.0, 150.0))
    begins = ((0.0, 0.0), (0.0, 35.0), (0.0, 35.0))
    return [
        (
            chance.choice(FAULTS),
            chance.uniform(*chance.choice(begins)),
            chance.uniform(*chance.choice(lasting)),
        )
        for _ in range(number)
    ]


def run_attempt(scene: Scene, faults: list[tuple[str, float, float]]) -> list[Command]:
    """Start the command, or one for each task of a platform, and wait for the end of all."""
    plan, before, scene.num_ended = scene.plan, len(scene.commands), 0
    tasks = range(plan.workers) if plan.place == "tf_config" else [None]
    for task in tasks:
        host = plan.hosts[task or 0]
        delay = scene.chance.uniform(0.0, 5.0) if task else 0.0
        scene.at(delay, lambda host=host, task=task: scene.start(host, task))
    for name, begin, seconds in faults:
        fault = Fault(name, scene.now + begin, scene.now + begin + seconds)
        scene.at(begin, lambda fault=fault: happen(scene, fault))

    def done() -> bool:
        return scene.num_ended == len(tasks)

    scene.run(done, scene.now + LONGEST_S)
    return [each for each in list(scene.commands.values())[before:] if not each.is_second]


def check_attempt(scene: Scene, commands: list[Command], faults: list[Fault]) -> None:
    """Check how commands ended: well, or because of something that has happened."""
    restarted = {"kill worker", "freeze worker", "hang worker"} >= {each.name for each in faults}
    for command in commands:
        if command.process.code == 0 and not (command.result or {}).get("finished"):
            raise Violation(f"it ended well with {command.result}")
        texts = [*command.warnings, *([str(command.error)] if command.error else [])]
        for text in texts:
            is_news = not re.match(r"waiting for|.* is locked by|.* no sign of life", text)
            if is_news and not any(explains(scene, fault, text) for fault in faults):
                raise Violation(f"no fault that was there explains: {text}")
        few = len(faults) <= scene.plan.max_restarts and scene.plan.place != "tf_config"
        if isinstance(command.error, WorkerFailed) and restarted and few:
            raise Violation(f"it was not started again: {command.error}")
        check_saved(scene, command, faults)
    check_verdict(commands, faults)
    if len(faults) == 1 and faults[0].worker and scene.plan.place != "tf_config":
        blamed = [each for each in texts if re.search(r"worker \d+ failed", each)]
        if blamed and faults[0].worker not in blamed[0]:
            raise Violation(f"{faults[0].worker} failed, but {blamed[0]}")


def check_saved(scene: Scene, command: Command, faults: list[Fault]) -> None:
    """Check that a first signal, if nothing else happens, loses no step."""
    gentle = [each.name for each in faults] == ["interrupt"] and faults[0].end == faults[0].begin
    if gentle and isinstance(command.error, Interrupted) and command.step > scene.saved:
        raise Violation(f"step {command.step} is lost, the last checkpoint is of {scene.saved}")


def check_run(scene: Scene) -> None:
    """Check the run that is done: its digest, its metrics, and what is left."""
    plan = scene.plan
    scene.run(lambda: not scene.running(), scene.now + LONGEST_S)
    folder = fetch(scene) if plan.remote else scene.folder / "run"
    digest, losses = undisturbed(plan.replicas, plan.steps)
    result = read_json(folder / "result.json", "")
    if (result["state_sha256"], result["finished"]) != (digest, True):
        raise Violation(f"the result is {result}; the undisturbed digest is {digest}")
    records = RecordFile(folder / "metrics.jsonl").read()
    check_metrics(records, losses, plan.steps)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    if left := [name for name in names if re.search(r"\.tmp$|(^|/)\.", name)]:
        raise Violation(f"files are left: {left}")
    if scene.disk.handles:
        raise Violation(f"locks are left: {[each.name for each in scene.disk.handles.values()]}")


def check_verdict(commands: list[Command], faults: list[Fault]) -> None:
    """Check that all tasks end with the error of one that only a person can correct."""
    errors = {str(each.error).rpartition("train: ")[2] for each in commands if each.process.code}
    found = [each for each in errors if re.search("differs from the chief|no folder data", each)]
    alone = {each.name for each in faults} <= {"differ", "lack", "slow listener", "starve"}
    if found and alone and (len(errors) > 1 or any(each.process.code != 2 for each in commands)):
        raise Violation(f"tasks end in different ways: {errors}")


def check_metrics(records: list[dict[str, float]], losses: tuple[float, ...], steps: int) -> None:
    """Check that blocks follow each other without a gap or a repeat, with the right losses."""
    last = 0
    for record in records:
        step = int(record["step"])
        if step <= last:
            raise Violation(f"metrics repeat: {step} after {last}")
        mean = sum(losses[last:step]) / (step - last)
        if abs(record["loss"] - mean) > 1e-5 * abs(mean):
            raise Violation(f"metrics have a gap before step {step}: {record['loss']}, not {mean}")
        last = step
    if last != steps:
        raise Violation(f"metrics end at step {last} of {steps}")


def fetch(scene: Scene) -> Path:
    """Return a copy of what the lease names; check that storage has nothing else."""
    objects, target = scene.bucket.objects, scene.folder / "copy"
    lease = parse_lease(objects["lease.json"][0], scene.run_dir)
    # storage that failed at the end leaves something behind
    is_quiet = not any(
        each.name == "storage" and each.end > scene.now - 200 for each in scene.happened
    )
    if lease.held and is_quiet:
        raise Violation("the lease is held by nobody")
    for name, key in lease.files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(objects[key][0])
    plain = re.compile(r"lease\.json$|events/|.*\.log$")
    others = objects.keys() - set(lease.files.values())
    left = [key for key in others if not plain.match(key)]
    if left and is_quiet:
        raise Violation(f"objects are left: {left}")
    return target
