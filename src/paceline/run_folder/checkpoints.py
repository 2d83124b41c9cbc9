"""The checkpoints of a run: saved completely or not at all, verified when read, pruned.

It owns which files are kept; the content of one is in `checkpoint_file`. Only `save` changes the
disk, so other commands can read the checkpoints of a run in progress.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import MOVABLE
from paceline.experiment.fields import Json
from paceline.maths.state import State, StateLayout
from paceline.run_folder import checkpoint_file
from paceline.run_folder.checkpoint_file import ANY_RUN, Damaged, RunIdentity
from paceline.storage.files import explained, is_file, may_pass, refuse_link, replacing, retry

if TYPE_CHECKING:
    from paceline.run_folder.folder import RunFolder


class Checkpoints:
    """The checkpoints of one run: the newest `keep` and the one with the best metric. `guard`
    raises if another process writes here."""

    def __init__(
        self,
        folder: str | Path,
        layout: StateLayout,
        keep: int = 2,
        identity: RunIdentity = ANY_RUN,
        warn: Callable[[str], None] = warnings.warn,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = Path(folder)
        self._layout = layout
        self._keep = keep
        self._identity = identity
        self._warn = warn
        self._guard = guard
        self._damaged: set[int] = set()

    def steps(self) -> list[int]:
        """Return the steps of all checkpoint files, oldest first."""
        return list_steps(self._folder)

    def save(self, state: State, metric: float | None = None) -> Path:
        """Write the state, then remove what need not be kept. A higher `metric` is better."""
        path = file_of(self._folder, state.step)
        content = checkpoint_file.pack(state, self._layout, self._identity.experiment, metric)
        try:
            retry(lambda: self._write(path, content))
        except OSError as error:
            kind = PassingFault if may_pass(error) else UserError
            raise kind(self._cannot_save(path, error, len(content))) from error
        self._damaged.discard(state.step)
        self._prune(state.step)
        return path

    def latest(self) -> State | None:
        """Return the newest complete state; warn of damaged files, which `save` removes."""
        return self._first_whole(lambda: self.steps()[::-1])

    def best(self) -> State | None:
        """Return the state with the highest metric; None if no checkpoint has one."""
        return self._first_whole(self._best_first)

    def is_best(self, metric: float) -> bool:
        """Return whether no checkpoint that can be read has a metric as high as this."""
        return all(metric > known for known in self._metrics(unreadable=set()).values())

    def choose(self, which: str) -> State:
        """Return the state that a command names: `best` (`last` without metrics), or a step."""
        if re.fullmatch(r"\d{1,18}", which, re.ASCII):
            return self.load(int(which))
        if which not in ("best", "last"):
            raise UserError(
                f"checkpoint is {which!r}; it must be best, last or a step: {self._listed()}"
            )
        state = (self.best() if which == "best" else None) or self.latest()
        if state is None:
            reason = "every checkpoint is damaged" if self.steps() else "there is no checkpoint yet"
            raise UserError(f"{self._folder.parent} cannot be used: {reason}; train it first")
        return state

    def load(self, step: int) -> State:
        """Return the state after `step`; a missing or damaged checkpoint is an error."""
        if step not in self.steps():
            raise UserError(
                f"no checkpoint of step {step} in {self._folder}; there are: {self._listed()}"
            )
        path = file_of(self._folder, step)
        try:
            with explained("read", path):
                return checkpoint_file.read_state(path, step, self._layout, self._identity)
        except Damaged as error:
            raise UserError(
                f"{path} is damaged ({error}); use another step: {self._listed()}"
            ) from error

    def _listed(self) -> str:
        return ", ".join(map(str, self.steps())) or "none"

    def _whole(self) -> list[int]:
        return [step for step in self.steps() if step not in self._damaged]

    def _write(self, path: Path, content: bytes) -> None:
        self._guard()  # a large state took its time to be packed, and so do several tries
        self._folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
            self._guard()

    def _cannot_save(self, path: Path, error: OSError, size: int) -> str:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"the disk is full: {size:,} bytes are needed"
            with suppress(OSError):
                reason += f", {shutil.disk_usage(path.parent).free:,} are free"
        last = [f"the checkpoint of step {step} is the last good one" for step in self._whole()]
        left = last[-1] if last else "there is no earlier checkpoint"
        return f"cannot save {path}: {reason}; {left}; correct this and run the same command again"

    def _prune(self, just_saved: int) -> None:
        self._guard()
        kept = {just_saved, *self._whole()[-self._keep :]}
        kept |= set(self._best_first(unreadable=kept)[:1])  # what is unreadable may be the best
        for step in set(self.steps()) - kept:
            path = file_of(self._folder, step)
            with explained("remove", path):
                path.unlink(missing_ok=True)
        self._damaged.clear()

    def _best_first(self, unreadable: set[int] | None = None) -> list[int]:
        """Return the steps with a metric, best first, of equals the earlier."""
        metrics = self._metrics(unreadable)
        return sorted(metrics, key=lambda step: (-metrics[step], step))

    def _metrics(self, unreadable: set[int] | None) -> dict[int, float]:
        """Return the metric of each step that has one in its file, with which an index could
        disagree. A file that cannot be read is added to `unreadable`, or is an OSError."""
        metrics: dict[int, float] = {}
        for step in self._whole():
            try:
                metric = checkpoint_file.read_metric(file_of(self._folder, step))
                metrics |= {} if metric is None else {step: metric}
            except Damaged:
                continue
            except OSError:
                if unreadable is None:
                    raise
                unreadable.add(step)
        return metrics

    def _first_whole(self, candidates: Callable[[], list[int]]) -> State | None:
        """Return the first of the candidates that is complete.

        If a file vanishes while it is read, a run has replaced it with newer ones, which are then
        listed; or its disk is unavailable, and nothing is listed.
        """
        seen: set[int] = set()

        def read() -> State | None:
            steps = candidates()
            seen.update(steps)
            if seen and not steps:
                raise FileNotFoundError(errno.ENOENT, "its checkpoints are gone")
            for step in steps:
                path = file_of(self._folder, step)
                try:
                    return checkpoint_file.read_state(path, step, self._layout, self._identity)
                except Damaged as error:
                    self._damaged.add(step)
                    self._warn(f"{path} is damaged ({error}) and is not used")
            return None

        try:
            return retry(read, passes=lambda error: isinstance(error, FileNotFoundError))
        except OSError as error:
            where = error.filename or self._folder
            raise PassingFault(f"cannot read {where}: {error.strerror or error}") from error


def list_steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoint files in a folder, oldest first."""

    def names() -> list[str]:
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []

    with explained("read", folder):
        refuse_link(folder)
        found = (re.fullmatch(r"step-(\d{8,18})\.safetensors", name) for name in retry(names))
        return sorted(int(match[1]) for match in found if match)


def file_of(folder: Path, step: int) -> Path:
    """Return the file of the checkpoint of a step."""
    return folder / f"step-{step:08d}.safetensors"


LONGER = (*MOVABLE, "epochs", "steps")
"""What differs in a run after it is extended."""


def identity_of(run: RunFolder) -> RunIdentity:
    """Return what the checkpoints of a run must agree with."""
    if is_file(run.path / "zoo.json"):  # an entry of the zoo: weights of a run that is not here
        return ANY_RUN
    experiment, result = run.experiment().digest(LONGER), Json()
    with suppress(UserError):  # a damaged one is computed again from the last checkpoint
        result = run.read_result() or result
    last = (result["step"], result["state_sha256"]) if result.get("finished") else (-1, "")
    return RunIdentity(experiment, *last)
