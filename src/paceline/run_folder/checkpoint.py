"""Checkpoints: a training state as a safetensors file, saved whole or not at all and verified when read.

It owns the names in a checkpoint file and which files are kept. When to save is decided by the plan and
`actions`; how a model's variables become flat vectors by `weights`. Only `save` changes the disk, so that other commands can
read the checkpoints of a training that is under way.
"""

from __future__ import annotations

import errno
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from paceline.core.state import State, StateLayout
from paceline.errors import UserError
from paceline.run_folder.files import replacing
from paceline.run_folder.versions import library_versions

FORMAT = 1
"""Of a checkpoint file; a number above it was written by a newer Paceline."""


class _Damaged(Exception):
    """The file is not what was once written."""


class Checkpoints:
    """The checkpoints of one run: the newest `keep` and the one with the best metric. Building it touches no disk."""

    def __init__(
        self,
        folder: str | Path,
        layout: StateLayout,
        keep: int = 2,
        experiment_digest: str = "",
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        if keep < 1:
            raise UserError(f"keep is {keep}; at least 1 checkpoint must be kept to resume from")
        self._folder, self._layout, self._keep = Path(folder), layout, keep
        self._experiment_digest, self._warn = experiment_digest, warn
        self._damaged: set[int] = set()

    def steps(self) -> list[int]:
        """Steps of the files that are there, oldest first."""
        found = (
            re.fullmatch(r"step-(\d+)\.safetensors", path.name)
            for path in self._folder.glob("step-*.safetensors")
        )
        return sorted(int(match[1]) for match in found if match)

    def save(self, state: State, metric: float | None = None) -> Path:
        """Write the state, then delete what need not be kept. With a `metric` (higher is better) it may be the best."""
        path = self._path(state.step)
        content = to_safetensors(_tensors(state, self._layout), self._metadata(state, metric))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            with replacing(path) as file:
                file.write(content)
        except OSError as error:
            raise UserError(self._cannot_save(path, error, len(content))) from error
        self._damaged.discard(state.step)
        self._prune(state.step)
        return path

    def latest(self) -> State | None:
        """The newest state that is whole. A damaged file is told of and passed over; the next `save` deletes it."""
        return self._first_whole(self.steps()[::-1])

    def best(self) -> State | None:
        """The state with the highest metric; None where no checkpoint has one."""
        return self._first_whole(self._by_metric())

    def choose(self, which: str) -> State:
        """`best`, `last` or a step, for commands that use a run; the best is the last where no checkpoint has a metric."""
        if which.isdecimal():
            return self.load(int(which))
        if which not in ("best", "last"):
            raise UserError(
                f"checkpoint is {which!r}; it must be best, last or a step: {', '.join(map(str, self.steps())) or 'none yet'}"
            )
        state = (self.best() if which == "best" else None) or self.latest()
        if state is None:
            reason = "every checkpoint is damaged" if self.steps() else "there is no checkpoint yet"
            raise UserError(f"{self._folder.parent} has nothing to use: {reason}; train it first")
        return state

    def load(self, step: int) -> State:
        if step not in self.steps():
            there = ", ".join(map(str, self.steps())) or "none"
            raise UserError(f"no checkpoint of step {step} in {self._folder}; there are: {there}")
        try:
            return self._read(step)
        except _Damaged as error:
            raise UserError(
                f"{self._path(step)} is damaged ({error}); use another step: {self.steps()}"
            ) from error

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}.safetensors"

    def _metadata(self, state: State, metric: float | None) -> dict[str, str]:
        metadata = {
            "format": str(FORMAT),
            "step": str(state.step),
            "state_sha256": state.sha256(),
            "experiment": self._experiment_digest,
            "vectors": json.dumps(list(self._layout.parts)),
            "versions": json.dumps(library_versions()),
        }
        return metadata | (
            {"metric": repr(float(metric))} if metric is not None and math.isfinite(metric) else {}
        )

    def _cannot_save(self, path: Path, error: OSError, size: int) -> str:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = (
            f"the disk is full, {size / 1e6:,.1f} MB are needed"
            if full
            else error.strerror or str(error)
        )
        good = [step for step in self.steps() if step not in self._damaged]
        left = (
            f"the checkpoint of step {good[-1]} is the last good one"
            if good
            else "there is no earlier checkpoint"
        )
        return (
            f"cannot save {path}: {reason}; {left}; put this right and run the same command again"
        )

    def _remove_leftovers(self) -> None:
        """Unfinished files of a process that was killed while saving: the lock says there is no other that saves now."""
        for path in self._folder.glob(".step-*.tmp"):
            path.unlink(missing_ok=True)

    def _prune(self, just_saved: int) -> None:
        whole = [step for step in self.steps() if step not in self._damaged]
        kept = {just_saved, *whole[-self._keep :], *self._by_metric()[:1]}
        for step in self.steps():
            if step not in kept:
                self._path(step).unlink(missing_ok=True)
        self._damaged.clear()

    def _by_metric(self) -> list[int]:
        """Steps with a metric, best first, of equals the earlier. Kept in the files, as no index can disagree."""
        metrics = {}
        for step in self.steps():
            try:
                metric = float(_read_metadata(self._path(step)).get("metric", "nan"))
            except (_Damaged, ValueError):
                continue
            if step not in self._damaged and not math.isnan(metric):
                metrics[step] = metric
        return sorted(metrics, key=lambda step: (-metrics[step], step))

    def _first_whole(self, steps: list[int]) -> State | None:
        for step in steps:
            try:
                return self._read(step)
            except _Damaged as error:
                self._damaged.add(step)
                self._warn(f"{self._path(step)} is damaged ({error}) and passed over")
        return None

    def _read(self, step: int) -> State:
        path = self._path(step)
        metadata = _read_metadata(path)
        try:
            written_by, written_step, vectors = (
                int(metadata["format"]),
                int(metadata["step"]),
                json.loads(metadata["vectors"]),
            )
        except (KeyError, ValueError) as error:
            raise _Damaged(f"its header lacks {error}") from error
        if written_by > FORMAT:
            raise UserError(
                f"{path} was written by a newer Paceline (format {written_by}, this one knows {FORMAT}); update Paceline"
            )
        if written_step != step:
            raise _Damaged(f"it says that it is of step {written_step}")
        if vectors != list(self._layout.parts):
            raise UserError(
                f"{path} does not fit the model: it has the vectors {vectors}, not {list(self._layout.parts)}"
            )
        state = State(step, _read_vectors(path, self._layout))
        if state.sha256() != metadata.get("state_sha256"):
            raise _Damaged("its contents do not have the digest they were saved with")
        return state


def newest_variables(folder: Path, vectors: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The variables of the newest whole checkpoint by name, from the first of `vectors` that has them; for another model's start."""
    for path in sorted(Path(folder).glob("step-*.safetensors"), reverse=True):
        found: dict[str, np.ndarray] = {}
        try:
            with _opened(path) as file:
                for vector in reversed(vectors):
                    names = [name for name in file.keys() if name.startswith(f"{vector}/")]  # noqa: SIM118
                    found |= {
                        name.removeprefix(f"{vector}/"): file.get_tensor(name) for name in names
                    }
        except _Damaged:
            continue
        return found
    raise UserError(f"there is no whole checkpoint in {folder}; train that run first")


def _tensors(state: State, layout: StateLayout) -> dict[str, np.ndarray]:
    """Every variable as a view into its vector."""
    sizes = {name: vector.size for name, vector in state.vectors.items()}
    assert list(sizes.items()) == list(layout.sizes().items()), (
        f"the state has {sizes}, its layout {layout.sizes()}"
    )
    vectors = {
        name: np.ascontiguousarray(vector, dtype="<f4") for name, vector in state.vectors.items()
    }
    return {
        name: vectors[vector][place].reshape(shape)
        for vector, name, place, shape in layout.pieces()
    }


def _read_metadata(path: Path) -> dict[str, str]:
    with _opened(path) as file:
        return file.metadata() or {}


def _read_vectors(path: Path, layout: StateLayout) -> dict[str, np.ndarray]:
    vectors = {name: np.empty(size, dtype=np.float32) for name, size in layout.sizes().items()}
    with _opened(path) as file:
        names = file.keys()
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        difference = _first_difference(shapes, layout)
        if difference:
            raise UserError(f"{path} does not fit the model: {difference}")
        for vector, name, place, _ in layout.pieces():
            vectors[vector][place] = file.get_tensor(name).reshape(-1)
    return vectors


def _first_difference(shapes: dict[str, tuple[int, ...]], layout: StateLayout) -> str:
    wanted = {name: shape for _, name, _, shape in layout.pieces()}
    for name, shape in wanted.items():
        if name not in shapes:
            return f"it has no {name!r}, which the model has"
        if shapes[name] != shape:
            return f"{name!r} has the shape {shapes[name]}, in the model {shape}"
    return next(
        (f"it has {name!r}, which the model has not" for name in shapes if name not in wanted), ""
    )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; whatever its reader finds wrong is damage."""
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise _Damaged(str(error)) from error
