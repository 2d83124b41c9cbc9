"""Groups of weights with their own settings: `optimizer.groups`. Pure, no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

from paceline.errors import UserError
from paceline.experiment.fields import Json, Range

if TYPE_CHECKING:
    from paceline.experiment.optimizer import Optimizer


@dataclass(frozen=True)
class Group:
    """The weights whose name fits `pattern`. If several groups fit a weight, the first is used.

    None uses the optimizer's setting.
    """

    pattern: str
    """A name of weights with * and ?, such as */kernel."""
    rate: Annotated[float, Range(0, 10**9)] = 1.0
    """Multiplies the learning rate; 0 never changes the weights."""
    decay: Annotated[float | None, Range(0, 10**9)] = None
    """Weight decay."""
    momentum: Annotated[float | None, Range(0, 1, excludes_highest=True)] = None
    """Momentum of sgd and muon."""
    rule: Literal["", "muon"] = ""
    """muon makes the update of each filter tensor orthogonal and scales the tensor."""
    until: Annotated[float, Range(0, 1)] = 1.0
    """Share of the steps that train these weights; the curve of their rate ends there."""

    def __str__(self) -> str:
        """Return the group as the command line takes it."""
        given = [item.name for item in fields(self)[1:] if getattr(self, item.name) != item.default]
        return " ".join([self.pattern, *(f"{name}={getattr(self, name)}" for name in given)])

    @property
    def is_frozen(self) -> bool:
        """Whether these weights never change."""
        return self.rate == 0 or self.until == 0


def groups_of(optimizer: Optimizer) -> tuple[Group, ...]:
    """Return the groups in their order, and last the group of all other weights."""
    return (*optimizer.groups, Group("*"))


def find_group(groups: tuple[Group, ...], name: str) -> int:
    """Return the number of the first group that a weight's name fits."""
    return next(i for i, group in enumerate(groups) if fnmatchcase(name, group.pattern))


def check_groups(optimizer: Optimizer) -> None:
    """Raise a UserError if a group does not fit the optimizer."""
    for group in optimizer.groups:
        if not group.pattern:
            raise UserError("optimizer.groups: each must begin with a pattern, such as */kernel")
        if group.momentum is not None and optimizer.name != "sgd" and group.rule != "muon":
            raise UserError(
                f"optimizer.groups: {str(group)!r} has a momentum; groups of {optimizer.name} "
                "cannot have their own"
            )


def check_patterns(optimizer: Optimizer, names: Iterable[str]) -> None:
    """Raise a UserError for a group that no weight belongs to."""
    groups, known = groups_of(optimizer), list(names)
    used = {find_group(groups, name) for name in known}
    for number, group in enumerate(optimizer.groups):
        if number not in used:
            raise UserError(
                f"optimizer.groups: no weight belongs to {str(group)!r}; the names are "
                f"{', '.join(known[:6])}{' ...' if len(known) > 6 else ''}"
            )


def parse_group(text: str) -> Group:
    """Return the group that a text such as '*/kernel rule=muon rate=0.5' describes."""
    pattern, *settings = text.split() or [""]
    given: Json = dict(setting.partition("=")[::2] for setting in settings)
    try:
        return Group(
            pattern, rule=given.pop("rule", ""), **{key: float(given[key]) for key in given}
        )
    except (TypeError, ValueError):
        raise UserError(
            f"optimizer.groups: {text!r} is not 'PATTERN KEY=VALUE ...'; the keys are rate, decay, "
            "momentum and until, each with a number, and rule"
        ) from None
