"""Whether a run folder belongs to what is to be trained now, and whether its records are sound."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paceline.errors import UserError
from paceline.experiment.experiment import MOVABLE, Experiment
from paceline.experiment.fields import Range, diff, from_json
from paceline.storage.files import is_file, plain
from paceline.versions import library_versions

if TYPE_CHECKING:
    from paceline.run_folder.folder import RunFolder

Count = Annotated[int, Range(1)]
Three = tuple[float, float, float]


@dataclass(frozen=True)
class Facts:
    """What config.json says about the data."""

    train: Count = 1
    test: Count = 1
    validation: Count = 1
    classes: tuple[str, ...] = ()
    image_shape: Annotated[tuple[int, int, int] | None, Range(1, 2**14)] = None
    mean: Three = (1.0, 1.0, 1.0)
    std: Three = (1.0, 1.0, 1.0)
    scaling: Literal["mean_std", "bgr_mean"] = "mean_std"
    class_weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class StoredResult:
    """What result.json says."""

    finished: bool
    step: Annotated[int, Range(0, 1e15)] = 0
    test_accuracy: float | None = None
    test_loss: float | None = None
    images_per_second: float | None = None
    state_sha256: str = ""
    error: str = ""


@dataclass(frozen=True)
class RunIdentity:
    """What the metadata of a run's checkpoints must agree with. An empty one agrees with all."""

    experiment: str = ""
    """Digest of the experiment, without what may move."""
    last_step: int = -1
    last_state: str = ""
    """Step and digest of the last state of a finished run, from result.json."""

    def check(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Raise UserError if a checkpoint was not saved by this run."""
        differs = self.experiment not in ("", metadata.get("experiment"))
        is_last = int(metadata["step"]) == self.last_step
        if differs or (is_last and metadata["state_sha256"] != self.last_state):
            raise UserError(f"{path} belongs to a different run; remove it, or restore the run's")


ANY_RUN = RunIdentity()


def identity_of(run: RunFolder) -> RunIdentity:
    """Return what the checkpoints of a run must agree with."""
    if is_file(run.path / "zoo.json"):  # an entry of the zoo: weights of a run that is not here
        return ANY_RUN
    experiment, result = run.experiment().digest(MOVABLE), dict[str, Any]()
    with suppress(UserError):  # a damaged one is computed again from the last checkpoint
        result = run.read_result() or result
    last = (result["step"], result["state_sha256"]) if result.get("finished") else (-1, "")
    return RunIdentity(experiment, *last)


def check_types(kind: type, values: dict[str, Any], path: Path, advice: str) -> dict[str, Any]:
    """Return the values; raise UserError if those that `kind` has do not fit it."""
    names = {field.name for field in fields(kind)}
    try:
        from_json(kind, {name: value for name, value in values.items() if name in names})
    except (UserError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}; {advice}") from error
    return values


def check_same_run(
    run: RunFolder,
    experiment: Experiment,
    data_facts: dict[str, Any],
    kernels: str,
    code: dict[str, str],
) -> list[str]:
    """Return which libraries have changed since a run began; raise UserError if anything else has.

    `code` has digests of the user's own functions.
    """
    where, config, old = run.where, run.config(), run.kernels()
    if kernels != old:
        from paceline.kernels.library import why_unavailable

        reason = why_unavailable() if old == "own" else ""
        advice = f"--kernels own cannot be used: {reason}" if reason else f"give --kernels {old}"
        raise UserError(
            f"{where} was trained with --kernels {old}; --kernels {kernels} "
            f"gives different bits; {advice}, or use another --run-dir"
        )
    if changed := run.experiment().changes_to(experiment):
        raise UserError(
            f"{where} is the run of a different experiment: {_short(changed)}; "
            "use another --run-dir, or the old settings to resume"
        )
    if changed := diff(run.data_facts(), plain(data_facts)):
        lines = [line.replace(": ", " ", 1) for line in changed]
        raise UserError(
            f"{where} cannot continue, the data is not the same: {_short(lines)}; "
            "use another --run-dir"
        )
    for name, digest in code.items():
        if config["code"].get(name) != digest:
            raise UserError(
                f"{where} cannot continue, the code of {name} is not the same as when the run "
                "began; restore it, or use another --run-dir"
            )
    return diff(config["versions"], library_versions())


def _short(lines: list[str], most: int = 5) -> str:
    shown = [line if len(line) <= 120 else line[:117] + "..." for line in lines[:most]]
    return ", ".join(shown) + (f" and {len(lines) - most} more" if len(lines) > most else "")
