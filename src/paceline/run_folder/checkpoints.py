"""The checkpoints of a run: saved completely or not at all, verified when read, pruned.

It owns which files are kept; the content of one is in `checkpoint_file`. The plan and the action
`SaveCheckpoint` decide when to save. Only `save` changes the disk, so other commands can read the
checkpoints of a run in progress.
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

from paceline.errors import PassingFault, UserError
from paceline.maths.state import State, StateLayout
from paceline.run_folder import checkpoint_file
from paceline.run_folder.checkpoint_file import Array, Damaged
from paceline.storage.files import explained, replacing
from paceline.storage.retry import may_pass, retry


class Checkpoints:
    """The checkpoints of one run: the newest `keep` and the one with the best metric.

    Building it touches no disk.
    """

    def __init__(
        self,
        folder: str | Path,
        layout: StateLayout,
        keep: int = 2,
        experiment_digest: str = "",
        warn: Callable[[str], None] = warnings.warn,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        if keep < 1:
            raise UserError(f"keep is {keep}; at least 1 checkpoint must be kept to resume from")
        self._folder = Path(folder)
        self._layout = layout
        self._keep = keep
        self._experiment_digest = experiment_digest
        self._warn = warn
        self._guard = guard
        self._damaged: set[int] = set()

    def steps(self) -> list[int]:
        """Return the steps of all checkpoint files, oldest first."""
        return list_steps(self._folder)

    def save(self, state: State, metric: float | None = None) -> Path:
        """Write the state, then remove what need not be kept. A higher `metric` is better.

        `guard` of the constructor is called before both, and raises if another process writes here.
        """
        path, content = self.file(state, metric)
        try:
            retry(lambda: self._write(path, content))
        except OSError as error:
            kind = PassingFault if may_pass(error) else UserError
            raise kind(self._cannot_save(path, error, len(content))) from error
        self._damaged.discard(state.step)
        self._prune(state.step)
        return path

    def file(self, state: State, metric: float | None = None) -> tuple[Path, bytes]:
        """Return the path and the content of the state's file."""
        content = checkpoint_file.pack(state, self._layout, self._experiment_digest, metric)
        return self._path(state.step), content

    def latest(self) -> State | None:
        """Return the newest complete state; warn of damaged files, which the next `save` removes.

        A file that cannot be read is not skipped: that is a PassingFault.
        """
        return self._first_whole(lambda: self.steps()[::-1])

    def best(self) -> State | None:
        """Return the state with the highest metric; None if no checkpoint has one."""

        def by_metric() -> list[int]:
            found, unreadable = self._by_metric()
            for step, error in unreadable.items():
                if not isinstance(error, FileNotFoundError):  # removed for newer ones
                    with explained("read", self._path(step)):
                        raise error
            return found

        return self._first_whole(by_metric)

    def choose(self, which: str) -> State:
        """Return the state that a command names: `best`, `last` or a step.

        If no checkpoint has a metric, the best is the last.
        """
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
        try:
            with explained("read", self._path(step)):
                return checkpoint_file.read_state(self._path(step), step, self._layout)
        except Damaged as error:
            raise UserError(
                f"{self._path(step)} is damaged ({error}); use another step: {self._listed()}"
            ) from error

    def _write(self, path: Path, content: bytes) -> None:
        self._guard()  # a large state took its time to be packed, and so do several tries
        self._folder.mkdir(parents=True, exist_ok=True)
        # Unfinished files of a killed process: only one process at a time may save here.
        for leftover in self._folder.glob(".step-*.tmp"):
            leftover.unlink(missing_ok=True)
        with replacing(path) as file:
            file.write(content)
            self._guard()

    def _path(self, step: int) -> Path:
        return file_of(self._folder, step)

    def _listed(self) -> str:
        return ", ".join(map(str, self.steps())) or "none"

    def _whole(self) -> list[int]:
        return [step for step in self.steps() if step not in self._damaged]

    def _cannot_save(self, path: Path, error: OSError, size: int) -> str:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"the disk is full: {size:,} bytes are needed"
            with suppress(OSError):
                reason += f", {shutil.disk_usage(path.parent).free:,} are free"
        left = "there is no earlier checkpoint"
        if whole := self._whole():
            left = f"the checkpoint of step {whole[-1]} is the last good one"
        return f"cannot save {path}: {reason}; {left}; correct this and run the same command again"

    def _prune(self, just_saved: int) -> None:
        self._guard()
        listed = self.steps()
        by_metric, unreadable = self._by_metric()
        # An unreadable checkpoint stays: it may be the best.
        kept = {just_saved, *self._whole()[-self._keep :], *by_metric[:1], *unreadable}
        for step in listed:
            if step not in kept:
                with explained("remove", self._path(step)):
                    self._path(step).unlink(missing_ok=True)
        self._damaged.clear()

    def _by_metric(self) -> tuple[list[int], dict[int, OSError]]:
        """Return the steps with a metric, best first, of equals the earlier; and the unreadable.

        The metric is in the checkpoint's own file: an index could disagree with it.
        """
        metrics: dict[int, float] = {}
        unreadable: dict[int, OSError] = {}
        for step in self._whole():
            try:
                metric = checkpoint_file.read_metric(self._path(step))
            except Damaged:
                continue
            except OSError as error:  # also if it is gone: it may come back
                unreadable[step] = error
                continue
            if metric is not None:
                metrics[step] = metric
        return sorted(metrics, key=lambda step: (-metrics[step], step)), unreadable

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
                raise FileNotFoundError(f"there is nothing in {self._folder} any more")
            return self._first_of(steps)

        try:
            return retry(read, passes=lambda error: isinstance(error, FileNotFoundError))
        except FileNotFoundError as error:
            text = f"the checkpoints in {self._folder} cannot be read: {error}"
            raise PassingFault(text) from error

    def _first_of(self, steps: list[int]) -> State | None:
        for step in steps:
            path = self._path(step)
            try:
                return checkpoint_file.read_state(path, step, self._layout)
            except Damaged as error:
                self._damaged.add(step)
                self._warn(f"{path} is damaged ({error}) and is not used")
            except FileNotFoundError:
                raise
            except OSError as error:
                raise PassingFault(f"cannot read {path}: {error.strerror or error}") from error
        return None


def newest_variables(folder: Path, vectors: tuple[str, ...]) -> dict[str, Array]:
    """Return the variables of the newest complete checkpoint by name, to start a model from.

    Each is taken from the first of `vectors` that has it.
    """
    for step in list_steps(Path(folder))[::-1]:
        path = file_of(Path(folder), step)
        found: dict[str, Array] = {}
        try:
            with explained("read", path):
                variables = checkpoint_file.read_variables(path, step)
        except Damaged as error:
            warnings.warn(f"{path} is damaged ({error}) and is not used", stacklevel=2)
            continue
        for vector in reversed(vectors):
            prefix = f"{vector}/"
            own = {name: value for name, value in variables.items() if name.startswith(prefix)}
            found |= {name.removeprefix(prefix): value for name, value in own.items()}
        return found
    raise UserError(f"there is no whole checkpoint in {folder}; train that run first")


def list_steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoint files in a folder, oldest first."""

    def names() -> list[str]:
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []

    with explained("read", folder):
        found = (re.fullmatch(r"step-(\d{8,18})\.safetensors", name) for name in retry(names))
        return sorted(int(match[1]) for match in found if match)


def file_of(folder: Path, step: int) -> Path:
    """Return the file of the checkpoint of a step."""
    return folder / f"step-{step:08d}.safetensors"
