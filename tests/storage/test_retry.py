from __future__ import annotations

import errno

import pytest

from paceline.errors import PassingFault, UserError
from paceline.storage import retry as module
from paceline.storage.retry import growing_pauses, may_pass, retry


class Clock:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.EIO, "input/output error"), True),
        (OSError(errno.ENOENT, "no such file"), False),
        (PassingFault("the disk is away"), True),
        (UserError("a wrong flag"), False),
        (ValueError("damaged"), False),
    ],
)
def test_only_errors_that_may_pass_are_tried_again(error: Exception, passes: bool) -> None:
    assert may_pass(error) == passes
    calls = []

    def action() -> None:
        calls.append(None)
        raise error

    with pytest.raises(type(error)):
        retry(action, [0.1] * 4)
    assert len(calls) == (5 if passes else 1)


def test_the_result_comes_after_the_error_has_passed(clock: Clock) -> None:
    warnings: list[str] = []

    def action() -> float:
        if clock.now < 5:
            raise PassingFault("away")
        return clock.now

    assert retry(action, growing_pauses(1, 30, 60), warn=warnings.append) == 7
    assert warnings == [f"away; trying again in {pause} s" for pause in (1, 2, 4)]


def test_pauses_grow_and_end_within_the_total(clock: Clock) -> None:
    found = []
    for pause_s in growing_pauses(1, 8, 30):
        found.append(pause_s)
        clock.sleep(pause_s)
    assert found == [1, 2, 4, 8, 8]
    assert list(growing_pauses(0.1, 0.1, 0)) == []
