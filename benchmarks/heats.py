"""Heats: of several ways to do the same, only the fastest takes part in the long measurement."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Contender, alternate
from benchmarks.report import number
from benchmarks.suites import Settings
from benchmarks.summary import best, quartiles

ROUNDS = 2


def choose_fastest(
    contenders: Sequence[Contender], prefixes: Sequence[str], settings: Settings
) -> tuple[list[Contender], list[str]]:
    """Return the contenders without the slower ones of each group, and notes with all speeds.

    The names of a group begin with one of `prefixes`.
    """
    slower, notes = set[str](), []
    for prefix in prefixes:
        group = [each for each in contenders if each.name.startswith(prefix)]
        if len(group) < 2:
            continue
        measured = alternate(group, ROUNDS, settings.turn_seconds, tell=settings.tell)
        fastest = best(measured, prefix)
        slower |= measured.keys() - {fastest}
        speeds = [
            f"{name} {number(quartiles(turn.images_per_s for turn in own.turns).median)}"
            for name, own in measured.items()
        ]
        notes.append(f"heats, images/s: {', '.join(speeds)}; {fastest} takes part")
    return [each for each in contenders if each.name not in slower], notes
