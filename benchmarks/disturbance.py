"""Whether something disturbed a round: other programs, the machine below, or a contender itself."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import ContenderFailed, Running, Turn, Turns, take_turns

MOST_STOLEN, MOST_BY_OTHERS, MOST_SPREAD = 0.02, 0.05, 1.25
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def read_load() -> tuple[float, float, float]:
    """Return the CPU time so far, in seconds of all CPUs: all of it, stolen, and used."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, idle, wait, hard, soft, stolen, *_ = (
        int(each) / _TICKS_PER_SECOND for each in line.split()[1:]
    )
    used = user + nice + system + hard + soft
    return used + idle + wait + stolen, stolen, used


def why_repeat(
    before: tuple[float, float, float],
    after: tuple[float, float, float],
    turns: Mapping[str, Turn],
    earlier: Turns,
) -> str:
    """Return what disturbed a round; empty if it counts."""
    total, stolen, used = (now - then for now, then in zip(after, before, strict=True))
    others = used - sum(turn.cpu_s for turn in turns.values())
    if stolen > MOST_STOLEN * total:
        return f"other machines took {stolen / total:.0%} of the CPU time"
    if others > MOST_BY_OTHERS * total:
        return f"other programs took {others / total:.0%} of the CPU time"
    for name, turn in turns.items():
        least = min([turn, *earlier[name]], key=lambda each: each.cpu_ms_per_image)
        if turn.cpu_ms_per_image > MOST_SPREAD * least.cpu_ms_per_image:
            times = turn.cpu_ms_per_image / least.cpu_ms_per_image
            return f"{name} took {times:.2f} times its least CPU time"
    return ""


@dataclass
class QuietRounds:
    """Repeats every round that was disturbed, and counts them."""

    tell: Callable[[str], None]
    reasons: list[str] = field(default_factory=list)
    most: int = 20

    def __call__(
        self, running: Sequence[Running], steps: Mapping[str, int], earlier: Turns
    ) -> dict[str, Turn]:
        while len(self.reasons) <= self.most:
            before = read_load()
            turns = take_turns(running, steps, earlier)
            reason = why_repeat(before, read_load(), turns, earlier)
            if not reason:
                return turns
            self.reasons.append(reason)
            self.tell(f"this round is repeated: {reason}")
        raise ContenderFailed(f"{len(self.reasons)} rounds were disturbed; the last: {reason}")
