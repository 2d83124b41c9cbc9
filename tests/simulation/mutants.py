"""Mistakes in the real decision code, each of which the simulation must find within ten minutes.

python -m tests.simulation.mutants               # all of them, one after the other
python -m tests.simulation.mutants --only "two takers of one lease"
"""

import argparse
import importlib
import importlib.util
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A mistake: some source of a module, and what stands there instead."""

    name: str
    module: str
    right: str
    wrong: str


WATCHDOG, GROUP, DIAGNOSIS = "supervise.watchdog", "supervise.group", "supervise.diagnosis"
LEASE, REMOTE, RECORDS = "storage.lease", "run_folder.remote_run", "run_folder.records"
CHECKPOINTS = "run_folder.checkpoints"
MUTANTS = (
    Mutant(
        "a frozen chief wakes up and writes",
        "storage.lock",
        "if not owner or (owner.token, owner.epoch) == (self._token, self.epoch):",
        "if True:",
    ),
    Mutant("an idle worker looks busy", WATCHDOG, "WORKING_SHARE = 0.05", "WORKING_SHARE = 0.0"),
    Mutant(
        "work is divided by the time between receipts",
        WATCHDOG,
        "now, (then, before) = self._clock(), self._work[worker]",
        "now, (then, before) = self._clock(), self._work[worker]; clock = now",
    ),
    Mutant(
        "the lost answer of a conditional write is taken for a successor",
        LEASE,
        "found, self._version = self._own_version()",
        'raise LeaseLost("somebody has taken over")',
    ),
    Mutant(
        "two takers of one lease",
        LEASE,
        "self._store.swap(LEASE, wanted.to_bytes(), version)",
        "self._store.swap(LEASE, wanted.to_bytes(), read_lease(self._store)[1])",
    ),
    Mutant(
        "a silent worker is never lost",
        WATCHDOG,
        "now - self._heard[worker] > seconds",
        "now - self._heard[worker] > 100 * seconds",
    ),
    Mutant(
        "a parent that was stopped blames its workers",
        WATCHDOG,
        "if self._clock() - self._looked > SILENT_S:",
        "if False:",
    ),
    Mutant(
        "who reports first is blamed",
        DIAGNOSIS,
        "first = min(reports, key=lambda each: (_rank(reports[each]), each))",
        "first = index",
    ),
    Mutant(
        "one restart too few",
        "supervise.restarts",
        "if restarts > place.max_restarts:  # starting",
        "if restarts >= place.max_restarts:  # starting",
    ),
    Mutant(
        "the parent waits for survivors for ever",
        "supervise.recovery",
        "ANSWER_S = 5.0",
        "ANSWER_S = 1e9",
    ),
    Mutant(
        "metrics of a saved state are not written",
        "chief",
        "lacking = min(len(state.tails), state.step - written)",
        "lacking = 0",
    ),
    Mutant(
        "metrics lose the last step", RECORDS, 'record["step"] <= step', 'record["step"] < step'
    ),
    Mutant("metrics keep what is computed again", RECORDS, "if kept != text:", "if False:"),
    Mutant(
        "a chief does not see that it was taken over",
        LEASE,
        "if found and lease.owner.token == self.token:",
        "if found:",
    ),
    Mutant(
        "a lease is taken over too early",
        LEASE,
        "deadline = time.monotonic() + LOCK_TIMEOUT_S",
        "deadline = time.monotonic() + LOCK_TIMEOUT_S / 12",
    ),
    Mutant("signs of life are ignored", LEASE, "if now != lease:", "if False:"),
    Mutant(
        "signs of life are rare",
        REMOTE,
        "self._ended.wait(BEAT_EVERY_S)",
        "self._ended.wait(20 * BEAT_EVERY_S)",
    ),
    Mutant(
        "an upload overwrites an earlier one",
        REMOTE,
        'key = f"attempts/{self.holder.lease.epoch}/{self._num_uploads}/{name}"',
        'key = f"attempts/{self.holder.lease.epoch}/1/{name}"',
    ),
    Mutant(
        "a chief removes what its successor uploads",
        REMOTE,
        "if attempt and int(attempt[1]) <= self.holder.lease.epoch:",
        "if attempt:",
    ),
    Mutant("two threads publish at once", REMOTE, "with self._publishing:", "if True:"),
    Mutant(
        "the end of a killed worker looks good",
        GROUP,
        "if worker.wait() not in (0, ASKED) and not has_served:",
        "if False:",
    ),
    Mutant("two commands lock one folder", "storage.lock", "fcntl.LOCK_EX", "fcntl.LOCK_SH"),
    Mutant(
        "a task that cannot train tells no other",
        "places.platform_task",
        "tell(job.cluster.address, str(error))",
        "pass",
    ),
    Mutant("a lease is not released", LEASE, "self.change(held=False)", "pass"),
    Mutant(
        "training has the limit of its start",
        WATCHDOG,
        "return self._place.stall_timeout if self.began else self._place.start_timeout",
        "return max(self._place.stall_timeout, self._place.start_timeout)",
    ),
    Mutant(
        "one restart too many",
        "supervise.restarts",
        "if restarts > place.max_restarts:  # starting",
        "if restarts > place.max_restarts + 1:  # starting",
    ),
    Mutant(
        "survivors save nothing",
        "supervise.recovery",
        "if newest < 0 or steps[newest] < 0:",
        "if True:",
    ),
    Mutant(
        "a worker forgets its state before the chief has saved it",
        "worker",
        "    engine.close()",
        "    memory.training = None; engine.close()",
    ),
    Mutant("the first signal kills", GROUP, "if self._started and not insists", "if False"),
    Mutant(
        "the newest checkpoint is removed",
        CHECKPOINTS,
        "kept = {just_saved, *self._whole()[-self._keep :]}",
        "kept = {*self._whole()[: self._keep]}",
    ),
    Mutant(
        "the oldest checkpoint is loaded",
        CHECKPOINTS,
        "self._first_whole(lambda: self.steps()[::-1])",
        "self._first_whole(lambda: self.steps())",
    ),
    Mutant(
        "a survivor saves though another command has taken over",
        "run_folder.folder",
        "if self._lock.owner().epoch != lease:",
        "if False:",
    ),
)


def apply(mutant: Mutant) -> None:
    """Import a module with the mistake in it; nothing may have imported it before."""
    name = f"paceline.{mutant.module}"
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    assert source.count(mutant.right) == 1, f"{name} does not contain {mutant.right!r} once"
    assert name not in sys.modules, f"{name} was imported before"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    changed = source.replace(mutant.right, mutant.wrong)
    exec(compile(changed, spec.origin, "exec"), module.__dict__)
    parent, _, own = name.rpartition(".")
    setattr(importlib.import_module(parent), own, module)


def search(mutant: Mutant, minutes: float) -> bool:
    """Play histories with the mistake until one fails that holds without it."""
    apply(mutant)
    from .history import play

    began, seed = time.monotonic(), 0
    without = (sys.executable, "-m", __spec__.name.rpartition(".")[0], "--seed")
    while time.monotonic() - began < 60 * minutes:
        seed += 1
        if not (violation := play(seed).violation):
            continue
        if subprocess.run((*without, str(seed)), stdout=subprocess.DEVNULL).returncode:
            print(f"seed {seed} fails without a mistake too", flush=True)
            continue
        took = time.monotonic() - began
        print(f"found: {mutant.name}: seed {seed}, {took:.0f} s: {violation[:150]}", flush=True)
        return True
    print(f"NOT FOUND: {mutant.name}: {seed:,} histories", flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for each mutant")
    parser.add_argument("--only", default="", help="the name of one mutant")
    options = parser.parse_args()
    if options.only:
        (mutant,) = (each for each in MUTANTS if each.name == options.only)
        return not search(mutant, options.minutes)
    own = (sys.executable, "-m", __spec__.name, "--minutes", str(options.minutes), "--only")
    found = [not subprocess.run((*own, each.name)).returncode for each in MUTANTS]
    print(f"{sum(found)} of {len(found)} mutants found")
    return not all(found)


if __name__ == "__main__":
    sys.exit(main())
