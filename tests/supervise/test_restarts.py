"""The restart policy: tables of what failed and how the command continues. Nothing is started."""

import pytest

from paceline.errors import AddressTaken, PassingFault, UserError, WorkerFailed
from paceline.job import Place
from paceline.supervise.restarts import ADDRESS_TRIES, Attempt, decide


def failure(end: str) -> UserError | WorkerFailed:
    """What a word means: `saved` and `failed` are lost workers, with a checkpoint before or not."""
    errors: dict[str, UserError] = {
        "taken": AddressTaken("cannot listen at 127.0.0.1:1"),
        "passing": PassingFault("cannot read a.jpg"),
        "data gone": UserError("no folder"),
        "diverged": UserError("the loss is nan"),
    }
    error = errors.get(end) or WorkerFailed("worker 1", "killed by SIGKILL", None)
    if end in ("saved", "failed", "diverged"):
        error.saved, error.started = end == "saved", True
    return error


def play(place: Place, ends: str) -> list[Attempt | None]:
    """Return the attempt after each of several failures, of which the last may be to give up."""
    attempt, attempts = Attempt(place.workers), list[Attempt | None]()
    for end in ends.split(", "):
        attempts.append(decide(attempt, place, failure(end)))
        if attempts[-1] is None:
            return attempts
        attempt = attempts[-1]
    return attempts


@pytest.mark.parametrize(
    ("max_restarts", "min_workers", "ends", "workers"),
    [
        # workers after each failure; None: the command gives up
        (0, 0, "failed", [None]),
        (1, 0, "failed", [4]),
        (1, 0, "failed, failed", [4, None]),
        (1, 0, "failed, saved, saved", [4, 4, 4]),
        (1, 0, "failed, saved, failed", [4, 4, None]),
        (0, 0, "taken, taken", [4, 4]),
        (0, 0, ", ".join(["taken"] * (ADDRESS_TRIES + 1)), [4] * ADDRESS_TRIES + [None]),
        (0, 1, "failed, failed, failed", [3, 2, 1]),
        (1, 3, "failed, failed, failed, failed", [4, 3, 3, None]),
        (0, 3, "failed, failed", [3, None]),
    ],
)
def test_workers_are_started_again_as_often_and_as_many_as_the_place_says(
    max_restarts: int, min_workers: int, ends: str, workers: list[int | None]
) -> None:
    decisions = play(Place(workers=4, max_restarts=max_restarts, min_workers=min_workers), ends)
    assert [each and each.workers for each in decisions] == workers
    assert all(each.warning and not each.pause_s for each in decisions if each)


@pytest.mark.parametrize(
    ("ends", "pauses"),
    [
        ("passing, passing, passing, passing", [2.0, 8.0, 32.0, None]),
        ("failed, data gone", [0.0, 8.0]),
        ("saved, passing, saved, passing", [0.0, 8.0, 0.0, 8.0]),
        ("data gone", [None]),  # at the first start: a person gave the wrong folder
        ("failed, diverged", [0.0, None]),  # it had trained: the settings are wrong
        ("failed, data gone, data gone, data gone", [0.0, 8.0, 32.0, None]),
    ],
)
def test_a_fault_that_may_pass_is_tried_again_after_pauses_that_grow(
    ends: str, pauses: list[float | None]
) -> None:
    decisions = play(Place(), ends)
    assert [each and each.pause_s for each in decisions] == pauses
    waits = sum("trying again in" in each.warning for each in decisions if each)
    assert waits == sum(bool(pause) for pause in pauses)


@pytest.mark.parametrize("end", ["failed", "passing", "taken"])
def test_a_platform_restarts_its_tasks_itself(end: str) -> None:
    assert play(Place(on="tf_config"), end) == [None]
