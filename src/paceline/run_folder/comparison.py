"""Whether a run folder belongs to what is to be trained now, and whether its records are sound.

Every function of the first kind raises UserError with what differs.
"""

from __future__ import annotations

from typing import Any

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import diff


def compare_kernels(where: str, old: str, new: str) -> None:
    if new != old:
        raise UserError(
            f"{where} was trained with --kernels {old}; --kernels {new} "
            f"gives different bits; give --kernels {old}, or use another --run-dir"
        )


def compare_experiments(where: str, old: Experiment, new: Experiment) -> None:
    if changed := old.changes_to(new):
        raise UserError(
            f"{where} is the run of a different experiment: {_short(changed)}; "
            "use another --run-dir, or the old settings to resume"
        )


def compare_data(where: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Compare sizes, classes and the digest of the data."""
    if changed := [line.replace(": ", " ", 1) for line in diff(old, new)]:
        raise UserError(
            f"{where} cannot continue, the data is not the same: {_short(changed)}; "
            "use another --run-dir"
        )


def compare_code(where: str, old: dict[str, Any], new: dict[str, str]) -> None:
    """Compare the digests of the user's own functions."""
    for name, digest in new.items():
        if old.get(name) != digest:
            raise UserError(
                f"{where} cannot continue, the code of {name} is not the same as when the run "
                "began; restore it, or use another --run-dir"
            )


def wrong_fact(facts: dict[str, Any]) -> str:
    """Return what is wrong with the facts of the data, if anything is."""
    for name in ("train", "test", "validation"):
        if name in facts and (type(facts[name]) is not int or facts[name] < 1):
            return f"no count of {name} examples"
    names, shape = facts.get("classes", ["a"]), facts.get("image_shape")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return "no list of classes"
    for name in ("mean", "std", "class_weights"):
        numbers = facts.get(name, [1.0] * 3)
        fits = isinstance(numbers, list) and all(type(each) in (int, float) for each in numbers)
        if not fits or (name != "class_weights" and len(numbers) != 3):
            return f"no numbers as {name}"
    if facts.get("scaling", "mean_std") not in ("mean_std", "bgr_mean"):
        return "no known scaling"
    sides = shape if isinstance(shape, list) else []
    fits = len(sides) == 3 and all(type(side) is int and 0 < side <= 2**14 for side in sides)
    return "" if shape is None or fits else "no image shape"


def wrong_result(result: dict[str, Any]) -> str:
    """Return what is wrong with a result, if anything is."""
    step = result.get("step", 0)
    if type(result.get("finished")) is not bool or type(step) is not int or not 0 <= step < 10**15:
        return "it does not say whether the run is finished, and at which step"
    for name in ("test_accuracy", "test_loss", "images_per_second"):
        value = result.get(name)
        if value is not None and (type(value) not in (int, float) or not abs(value) < 1e100):
            return f"its {name} is not a number"
    for name in ("state_sha256", "error"):
        if not isinstance(result.get(name, ""), str):
            return f"its {name} is not text"
    return ""


def _short(lines: list[str], most: int = 5) -> str:
    shown = [line if len(line) <= 120 else line[:117] + "..." for line in lines[:most]]
    return ", ".join(shown) + (f" and {len(lines) - most} more" if len(lines) > most else "")
