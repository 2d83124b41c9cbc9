"""Checkpoints: training states as safetensors files, saved whole or not at all, verified when read.

It owns the names in a checkpoint file and which files are kept. The plan and the action
`SaveCheckpoint` decide when to save. Only `save` changes the disk, so other commands can read the
checkpoints of a training that is under way.
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
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from paceline.core.state import State, StateLayout
from paceline.errors import UserError
from paceline.run_folder.files import replacing
from paceline.run_folder.versions import library_versions

FORMAT = 1
"""Of a checkpoint file. A newer Paceline writes a higher number."""

Array = npt.NDArray[np.float32]


class _Damaged(Exception):
    """The file is not what was once written."""


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
    ) -> None:
        if keep < 1:
            raise UserError(f"keep is {keep}; at least 1 checkpoint must be kept to resume from")
        self._folder = Path(folder)
        self._layout = layout
        self._keep = keep
        self._experiment_digest = experiment_digest
        self._warn = warn
        self._damaged: set[int] = set()

    def steps(self) -> list[int]:
        """Return the steps of all checkpoint files, oldest first."""
        names = (path.name for path in self._folder.glob("step-*.safetensors"))
        found = (re.fullmatch(r"step-(\d+)\.safetensors", name) for name in names)
        return sorted(int(match[1]) for match in found if match)

    def save(self, state: State, metric: float | None = None) -> Path:
        """Write the state, then remove what need not be kept. A higher `metric` is better."""
        path = self._path(state.step)
        content = to_safetensors(_tensors(state, self._layout), self._metadata(state, metric))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Unfinished files of a killed process: only one process at a time may save here.
            for leftover in self._folder.glob(".step-*.tmp"):
                leftover.unlink(missing_ok=True)
            with replacing(path) as file:
                file.write(content)
        except OSError as error:
            raise UserError(self._cannot_save(path, error, len(content))) from error
        self._damaged.discard(state.step)
        self._prune(state.step)
        return path

    def latest(self) -> State | None:
        """Return the newest whole state; warn of damaged files, which the next `save` removes."""
        return self._first_whole(self.steps()[::-1])

    def best(self) -> State | None:
        """Return the state with the highest metric; None if no checkpoint has one."""
        return self._first_whole(self._by_metric())

    def choose(self, which: str) -> State:
        """Return the state that a command names: `best`, `last` or a step.

        If no checkpoint has a metric, the best is the last.
        """
        if which.isdecimal():
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
            return self._read(step)
        except _Damaged as error:
            raise UserError(
                f"{self._path(step)} is damaged ({error}); use another step: {self._listed()}"
            ) from error

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}.safetensors"

    def _listed(self) -> str:
        return ", ".join(map(str, self.steps())) or "none"

    def _whole(self) -> list[int]:
        return [step for step in self.steps() if step not in self._damaged]

    def _metadata(self, state: State, metric: float | None) -> dict[str, str]:
        metadata = {
            "format": str(FORMAT),
            "step": str(state.step),
            "state_sha256": state.sha256(),
            "experiment": self._experiment_digest,
            "vectors": json.dumps(list(self._layout.parts)),
            "versions": json.dumps(library_versions()),
        }
        if metric is not None and math.isfinite(metric):
            metadata["metric"] = repr(float(metric))
        return metadata

    def _cannot_save(self, path: Path, error: OSError, size: int) -> str:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"the disk is full, {size / 1e6:,.1f} MB are needed"
        left = "there is no earlier checkpoint"
        if whole := self._whole():
            left = f"the checkpoint of step {whole[-1]} is the last good one"
        return f"cannot save {path}: {reason}; {left}; correct this and run the same command again"

    def _prune(self, just_saved: int) -> None:
        kept = {just_saved, *self._whole()[-self._keep :], *self._by_metric()[:1]}
        for step in self.steps():
            if step not in kept:
                self._path(step).unlink(missing_ok=True)
        self._damaged.clear()

    def _by_metric(self) -> list[int]:
        """Return the steps with a metric, best first, of equals the earlier.

        The metric is in the checkpoint's own file: an index could disagree with it.
        """
        metrics = {}
        for step in self._whole():
            try:
                metric = float(_read_metadata(self._path(step)).get("metric", "nan"))
            except (_Damaged, ValueError):
                continue
            if not math.isnan(metric):
                metrics[step] = metric
        return sorted(metrics, key=lambda step: (-metrics[step], step))

    def _first_whole(self, steps: list[int]) -> State | None:
        for step in steps:
            try:
                return self._read(step)
            except _Damaged as error:
                self._damaged.add(step)
                self._warn(f"{self._path(step)} is damaged ({error}) and is not used")
        return None

    def _read(self, step: int) -> State:
        path = self._path(step)
        metadata = _read_metadata(path)
        try:
            written_by = int(metadata["format"])
            written_step = int(metadata["step"])
            vectors = json.loads(metadata["vectors"])
        except (KeyError, ValueError) as error:
            raise _Damaged(f"its header lacks {error}") from error
        if written_by > FORMAT:
            raise UserError(
                f"{path} was written by a newer Paceline (format {written_by}, this one reads "
                f"up to {FORMAT}); update Paceline"
            )
        if written_step != step:
            raise _Damaged(f"its header has step {written_step}")
        wanted = list(self._layout.parts)
        if vectors != wanted:
            raise UserError(
                f"{path} does not fit the model: it has the vectors {vectors}, not {wanted}"
            )
        state = State(step, _read_vectors(path, self._layout))
        if state.sha256() != metadata.get("state_sha256"):
            raise _Damaged("its contents do not have the digest they were saved with")
        return state


def newest_variables(folder: Path, vectors: tuple[str, ...]) -> dict[str, Array]:
    """Return the variables of the newest whole checkpoint by name, to start another model with.

    Each is taken from the first of `vectors` that has it.
    """
    for path in sorted(Path(folder).glob("step-*.safetensors"), reverse=True):
        found: dict[str, Array] = {}
        try:
            with _opened(path) as file:
                names = list(file.keys())
                for vector in reversed(vectors):
                    prefix = f"{vector}/"
                    own = [name for name in names if name.startswith(prefix)]
                    found |= {name.removeprefix(prefix): file.get_tensor(name) for name in own}
        except _Damaged:
            continue
        return found
    raise UserError(f"there is no whole checkpoint in {folder}; train that run first")


def _tensors(state: State, layout: StateLayout) -> dict[str, Array]:
    """Return every variable as a view into its vector."""
    sizes = {name: vector.size for name, vector in state.vectors.items()}
    assert list(sizes.items()) == list(layout.sizes().items()), (sizes, layout.sizes())
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


def _read_vectors(path: Path, layout: StateLayout) -> dict[str, Array]:
    vectors = {name: np.empty(size, dtype=np.float32) for name, size in layout.sizes().items()}
    with _opened(path) as file:
        names = list(file.keys())
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        if difference := _first_difference(shapes, layout):
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
    extra = [name for name in shapes if name not in wanted]
    return f"it has {extra[0]!r}, which the model does not have" if extra else ""


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; errors of its reader mean that the file is damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise _Damaged(str(error)) from error
