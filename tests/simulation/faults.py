"""What can happen in a history, to which process or host, and for how long."""

import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.storage.lease import LOCK_TIMEOUT_S

from .scene import Scene
from .storage import BROKEN, FULL
from .world import Process, Violation


@dataclass
class Fault:
    """Something that happens for some time."""

    name: str
    begin: float
    end: float
    worker: str = ""
    """The name of the worker to blame, if there is one."""
    commands: list[Process] = field(default_factory=list)
    """Those that it starts."""


def happen(scene: Scene, fault: Fault) -> None:
    """Let a fault happen, if there is something that it can happen to."""
    if not any(not each.is_second and each.process.alive for each in scene.commands.values()):
        return
    if target := ACTIONS[fault.name][0](scene, fault):
        scene.note(f"fault: {fault.name} of {target} until {fault.end:.1f}")
        scene.happened.append(fault)


def later(scene: Scene, fault: Fault, action: Callable[[], None]) -> None:
    scene.at(fault.end - scene.now, action)


def some_worker(scene: Scene, fault: Fault) -> Process | None:
    workers = [each.process for each in scene.workers if each.process.alive]
    if not workers:
        return None
    process = scene.chance.choice(workers)
    fault.worker = process.name.partition("/")[2]
    return process


def kill_worker(scene: Scene, fault: Fault) -> str:
    if process := some_worker(scene, fault):
        return send(fault, process, signal.SIGKILL)
    return ""


def kill(scene: Scene, fault: Fault) -> str:
    return send(fault, scene.chance.choice(scene.running()), signal.SIGKILL)


def terminate(scene: Scene, fault: Fault) -> str:
    return send(fault, scene.chance.choice(scene.running()), signal.SIGTERM)


def interrupt(scene: Scene, fault: Fault) -> str:
    """A person, a terminal or a platform interrupts a command, perhaps twice."""
    running = [each.process for each in scene.commands.values() if each.process.alive]
    process = scene.chance.choice(running)
    first, second = (scene.chance.choice(GENTLE) for _ in range(2))
    process.signal(first)
    if scene.chance.random() < 0.5:
        later(scene, fault, lambda: process.signal(second))
    else:
        fault.end = fault.begin
    return f"{process.name} by {first.name}"


def send(fault: Fault, process: Process, number: int) -> str:
    fault.end = fault.begin
    process.signal(number)
    return process.name


def freeze_worker(scene: Scene, fault: Fault) -> str:
    if process := some_worker(scene, fault):
        process.freeze()
        later(scene, fault, process.thaw)
        watch(scene, fault, process)
        return process.name
    return ""


def hang_worker(scene: Scene, fault: Fault) -> str:
    """A worker waits for ever, but its other threads are alive. Who is to blame is a guess."""
    if process := some_worker(scene, fault):
        process.hangs, fault.worker = True, ""
        watch(scene, fault, process)
        return process.name
    return ""


def lose_two(scene: Scene, fault: Fault) -> str:
    """A worker is killed, and another stands still for so long that nobody can wait for it."""
    killed, frozen = some_worker(scene, fault), some_worker(scene, fault)
    if not killed or not frozen or killed is frozen:
        return ""
    fault.worker, fault.end = "", fault.begin + 600.0
    frozen.freeze()
    killed.signal(signal.SIGKILL)
    later(scene, fault, frozen.thaw)
    return f"{killed.name} and {frozen.name}"


def watch(scene: Scene, fault: Fault, process: Process) -> None:
    """Check that a worker that stands still is noticed after its limit, if all else is well."""
    command, plan = scene.commands[process.command], scene.plan
    limit = plan.stall_timeout if command.trains else max(plan.start_timeout, plan.stall_timeout)
    limit += LOCK_TIMEOUT_S * plan.remote  # it may still wait for a lease, which is progress

    def check() -> None:
        others = [each for each in scene.recent(command) if each is not fault]
        stands = process.frozen or (process.hangs and not process.spins)
        if process.alive and stands and not others:
            raise Violation(f"nobody has noticed for {limit + NOTICED_S:.0f} s: {process.name}")

    scene.at(limit + NOTICED_S, check)


def spin_worker(scene: Scene, fault: Fault) -> str:
    """A worker computes for ever."""
    if scene.plan.remote or not hang_worker(scene, fault):  # there, limits are long
        return ""
    scene.spun = True
    process = next(each for each in scene.running() if each.hangs)
    process.spins = True
    return process.name


def freeze_host(scene: Scene, fault: Fault) -> str:
    """Every process of a host stops: a laptop sleeps, a virtual machine is moved."""
    host = scene.chance.choice(scene.plan.hosts)
    stopped = [each for each in scene.running() if each.host == host]
    for process in stopped:
        process.freeze()
        later(scene, fault, process.thaw)
    return host


def cut_link(scene: Scene, fault: Fault) -> str:
    if len(scene.plan.hosts) == 1:
        return ""
    host = scene.chance.choice(scene.plan.hosts)
    scene.network.cut(host)
    later(scene, fault, lambda: scene.network.mend(host))
    return host


def break_storage(scene: Scene, fault: Fault) -> str:
    """Requests of some hosts are refused or late, or their answers are lost."""
    if not scene.plan.remote:
        return ""
    trouble = scene.chance.choice(["refuse", "lose", "lose", "delay"])
    hosts = scene.chance.choice([scene.plan.hosts, [*scene.plan.hosts, "other"], ["other"]])
    for host in hosts:
        scene.bucket.trouble[host] = trouble
    later(scene, fault, scene.bucket.trouble.clear)
    return f"{trouble} on {hosts}"


def break_disk(scene: Scene, fault: Fault) -> str:
    scene.disk.fault = scene.chance.choice([FULL, BROKEN])

    def mend() -> None:
        scene.disk.fault = 0

    later(scene, fault, mend)
    return str(scene.disk.fault)


def second_command(scene: Scene, fault: Fault) -> str:
    """Somebody starts the same run again, on this host or elsewhere."""
    if scene.plan.place == "tf_config":
        return ""
    host = scene.chance.choice([scene.plan.hosts[0], "other"])
    start_second(scene, fault, host)
    if scene.chance.random() < 0.3:
        start_second(scene, fault, "a third one")
    return host


def race(scene: Scene, fault: Fault) -> str:
    """A command's machine is lost, and several are started at the same moment: one of them trains.

    None of them knows that the holder of a lease has ended: all wait for it equally long.
    """
    if scene.plan.place == "tf_config":
        return ""
    command = scene.chance.choice(scene.running()).command
    for process in scene.running(command):
        process.exit(-signal.SIGKILL)
        shutil.rmtree(scene.folder / process.host, ignore_errors=True)
    for host in ("other", "a third one"):
        start_second(scene, fault, host)
    return f"command {command}"


def start_second(scene: Scene, fault: Fault, host: str, thawed_at: float = 0.0) -> None:
    """Start a command; the fault lasts until it ends, and until what stands still is thawed."""
    process = scene.start(host, is_second=True).process
    fault.commands.append(process)
    fault.end = float("inf")

    def ended() -> None:
        if not any(each.alive for each in fault.commands):
            fault.end = max(scene.now, thawed_at)

    process.at_end.append(ended)


def lose_lock(scene: Scene, fault: Fault) -> str:
    """A network file system gives the lock of a host away that it does not hear.

    On remote storage, a command stands still for so long that another one takes its lease.
    """
    holder = scene.writer()
    if scene.plan.place == "tf_config" or not holder or not holder.alive or scene.disk.writing:
        return ""
    longest, stopped = scene.chance.uniform(5.0, 60.0), [holder]
    if scene.plan.remote:
        longest, stopped = longest + LOCK_TIMEOUT_S, scene.running(holder.command)
    else:
        scene.disk.close(holder)
    for process in stopped:
        process.freeze()
        scene.at(longest, process.thaw)
    start_second(scene, fault, "other", scene.now + longest)
    return holder.name


def differ(scene: Scene, fault: Fault) -> str:
    """A host has different data: no worker trains, and none is started again."""
    if len(scene.plan.hosts) == 1:
        return ""
    scene.differs[scene.plan.hosts[-1]] = 1
    later(scene, fault, scene.differs.clear)
    return scene.plan.hosts[-1]


def lack(scene: Scene, fault: Fault) -> str:
    """A host has no data: it alone sees that, before the workers compare what they have."""
    host = scene.chance.choice(scene.plan.hosts)
    scene.lacks.add(host)
    later(scene, fault, scene.lacks.clear)
    return host


def starve_commands(scene: Scene, fault: Fault) -> str:
    """Commands get no processor for two seconds, again and again: messages arrive in bursts."""
    commands = [each.process for each in scene.commands.values() if each.process.alive]
    commands = [each for each in commands if not each.starves]  # three times would be for ever

    def stop() -> None:
        for process in commands:
            process.starves = True
            process.freeze()
            scene.at(2.0, process.thaw)
        if any(process.alive for process in commands):
            scene.at(4.0, stop)

    stop()
    return "all commands"


def slow_listener(scene: Scene, fault: Fault) -> str:
    scene.slow_until = fault.end
    return "every command"


NOTICED_S = 25.0
"""A worker may stand still for this much longer than its limit: until it is next expected to do
something, until its parent looks, and until the others have explained and saved what they have."""
GENTLE = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTERM)
LOST = r"another worker is gone|no answer|it makes no progress"
"""What the other tasks of a platform may say of any fault."""
ACTIONS = {
    "kill worker": (kill_worker, "killed by SIGKILL|exit code"),
    "kill": (kill, "killed by SIGKILL|exit code"),
    "terminate": (terminate, "SIGTERM|exit code"),
    "interrupt": (interrupt, "stopped by SIG|exit code"),
    "freeze worker": (freeze_worker, "stopped or starved|no progress|another process"),
    "lose two": (lose_two, "killed by SIGKILL|exit code|stopped|no progress|another process"),
    "freeze host": (freeze_host, "stopped or starved|no progress|another process"),
    "hang worker": (hang_worker, "stopped or starved|no progress"),
    "spin worker": (spin_worker, "stopped or starved|no progress"),
    "cut link": (cut_link, "no progress|stopped or starved"),
    "storage": (break_storage, r"cannot \w+ s3|no progress"),
    "disk": (break_disk, r"cannot (write|save|lock|fetch)"),
    "second command": (second_command, "another process|taken over|another command"),
    "race": (race, "another process|taken over|another command|killed by SIGKILL|exit code"),
    "lose lock": (lose_lock, "taken over|another process|another command|stopped or starved"),
    "differ": (differ, "differs from the chief"),
    "lack": (lack, "there is no folder data"),
    "slow listener": (slow_listener, "(?!)"),
    "starve": (starve_commands, "(?!)"),
}
"""What happens, and what a command that fails because of it says."""
FAULTS = list(ACTIONS)


def explains(scene: Scene, fault: Fault, text: str) -> bool:
    """Return whether a fault explains an error or a warning."""
    words = ACTIONS[fault.name][1]
    if fault.name == "freeze host" and scene.plan.place == "local":
        words = "another process"  # the parent was stopped too, and blames nobody
    return bool(re.search(f"{words}|{LOST}" if scene.plan.place == "tf_config" else words, text))
