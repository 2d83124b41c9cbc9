"""Groups of weights with settings of their own: `optimizer.groups` as data. Pure, no TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from paceline.errors import UserError

if TYPE_CHECKING:
    from paceline.experiment.optimizer import Optimizer

RULES = ("", "muon")


@dataclass(frozen=True)
class Group:
    """The weights whose name fits `pattern`; None is the setting of the optimizer."""

    pattern: str
    rate: float = 1.0
    decay: float | None = None
    momentum: float | None = None
    rule: str = ""
    until: float = 1.0

    @property
    def is_frozen(self) -> bool:
        """Whether these weights never change."""
        return self.rate == 0 or self.until == 0


def parse_groups(optimizer: Optimizer) -> tuple[Group, ...]:
    """Return the groups in their order, and last the group of all other weights."""
    return (*(_parse(text) for text in optimizer.groups), Group("*"))


def find_group(groups: tuple[Group, ...], name: str) -> int:
    """Return the number of the first group that a weight's name fits."""
    return next(i for i, group in enumerate(groups) if fnmatchcase(name, group.pattern))


def check_groups(optimizer: Optimizer) -> None:
    """Raise a UserError if a group is not understood or does not fit the optimizer."""
    for group, text in zip(parse_groups(optimizer), optimizer.groups, strict=False):
        if group.momentum is not None and optimizer.name != "sgd" and group.rule != "muon":
            raise UserError(
                f"optimizer.groups: {text!r} has a momentum; groups of {optimizer.name} cannot "
                "have one of their own"
            )


def check_patterns(optimizer: Optimizer, names: Iterable[str]) -> None:
    """Raise a UserError for a group that no weight belongs to."""
    groups, known = parse_groups(optimizer), list(names)
    used = {find_group(groups, name) for name in known}
    for number, text in enumerate(optimizer.groups):
        if number not in used:
            raise UserError(
                f"optimizer.groups: no weight belongs to {text!r}; the names are "
                f"{', '.join(known[:6])}{' ...' if len(known) > 6 else ''}"
            )


def _parse(text: str) -> Group:
    pattern, *settings = text.split() or [""]
    values: dict[str, float | str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in {field.name for field in fields(Group)} - {"pattern"}:
            raise UserError(
                f"optimizer.groups: {setting!r} in {text!r} is unknown; give 'PATTERN KEY=VALUE "
                "...' with the keys rate, decay, momentum, rule and until"
            )
        values[key] = value if key == "rule" else _number(value, text)
    group = Group(pattern, **values)  # type: ignore[arg-type]
    return _checked(group, text)


def _number(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"optimizer.groups: {value!r} in {text!r} is not a number")
    return number


def _checked(group: Group, text: str) -> Group:
    limits = (
        (bool(group.pattern), "begin with a pattern of names, such as */kernel"),
        (0 <= group.rate <= 1e9, "have a rate from 0 to 1e9"),
        (0 <= (group.decay or 0.0) <= 1e9, "have a decay from 0 to 1e9"),
        (0 <= (group.momentum or 0.0) < 1, "have a momentum in [0, 1)"),
        (0 <= group.until <= 1, "have until in [0, 1], a share of the steps"),
        (group.rule in RULES, "have no rule, or rule=muon"),
    )
    for holds, wanted in limits:
        if not holds:
            raise UserError(f"optimizer.groups: {text!r} must {wanted}")
    return group
