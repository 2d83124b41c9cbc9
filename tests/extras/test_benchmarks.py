"""The published tables are made from what was measured, and disturbed rounds do not count."""

import pytest
from benchmarks import chart, results
from benchmarks.disturbance import QuietRounds, why_repeat
from benchmarks.harness import ContenderFailed, Measured, Running, Turn, warm_up
from benchmarks.summary import compared


def test_the_page_and_its_picture_are_made_from_what_was_measured() -> None:
    finished = results.read_finished()
    assert results.table(finished) in (results.DOCS / "results.md").read_text()
    assert results.picture(finished) == (results.DOCS / "images" / "results.svg").read_text()
    names = {row.run_name(seed) for row in results.ROWS for seed in range(row.seeds)}
    assert {file.stem for file in results.MEASURED.glob("*.json")} <= names


def test_the_picture_of_speed_shows_what_was_measured() -> None:
    measured = chart.read_all()
    assert chart.picture(measured) == chart.PICTURE.read_text()
    page = (results.DOCS / "performance.md").read_text()
    for quartiles in (each for cpu in measured.values() for each in cpu.values()):
        low, median, high = (f"{each:.2f}" for each in quartiles)
        assert f"| {median} ({low} to {high})" in page


@pytest.mark.parametrize(
    ("stolen", "used", "cpu_s", "word"),
    [(0, 8, 4, ""), (0.5, 8, 4, "machines"), (0, 9, 4, "programs"), (0, 11, 5.5, "least")],
)
def test_a_round_is_disturbed_by_machines_programs_and_spinning_threads(
    stolen: float, used: float, cpu_s: float, word: str
) -> None:
    turns = {name: Turn(images=100, wall_s=2, cpu_s=cpu_s) for name in ("ours", "theirs")}
    earlier = {name: [Turn(images=100, wall_s=2, cpu_s=4)] for name in turns}
    reason = why_repeat((10, 1, 5), (20, 1 + stolen, 5 + used), turns, earlier)
    assert word in reason
    assert bool(reason) == bool(word)


def test_disturbed_rounds_are_repeated_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ["noise", "more noise", ""]
    monkeypatch.setattr("benchmarks.disturbance.why_repeat", lambda *_: reasons.pop(0))
    rounds = QuietRounds(lambda message: None)
    rounds([], {}, {})
    assert rounds.reasons == ["noise", "more noise"]
    assert not reasons


class Compiling(Running):
    """A contender that does 100 steps a second, and does something else in its first turns."""

    def __init__(self, extra_s: list[float]) -> None:
        self.name, self.extra_s = "any", extra_s

    def turn(self, steps: int) -> Turn:
        wall_s = steps / 100 + (self.extra_s.pop(0) if self.extra_s else 0.0)
        return Turn(steps, wall_s, wall_s)


@pytest.mark.parametrize("extra_s", [[], [3.0], [3.0, 0.5], [3.0, 0.0, 2.0, 0.0, 0.4]])
def test_what_a_contender_does_once_does_not_shorten_its_turns(extra_s: list[float]) -> None:
    assert warm_up(Compiling(extra_s), turn_seconds=1.5) == 150


def test_a_contender_without_a_steady_speed_is_an_error() -> None:
    with pytest.raises(ContenderFailed, match="no steady speed"):
        warm_up(Compiling([0.0, 4.0] * 20), turn_seconds=1.5)


def test_pytorchs_best_of_each_round_counts_and_a_contradiction_is_not_printed() -> None:
    def measured(speeds: list[float], cpu_s: list[float]) -> Measured:
        turns = tuple(Turn(each, 1.0, cpu) for each, cpu in zip(speeds, cpu_s, strict=True))
        return Measured("any", 1, turns, 0.0)

    slow, fast = measured([10, 20], [2, 2]), measured([20, 10], [2, 2])
    pytorch = {"pytorch-a": slow, "pytorch-b": fast}
    speed, cpu, *_ = compared({"paceline": measured([40, 40], [2, 2]), **pytorch}, "paceline")
    assert speed.measured.median == cpu.measured.median == 2
    cpu, *cores = compared({"paceline": measured([40, 40], [1.5, 1.5]), **pytorch}, "paceline")
    assert cpu.name.startswith("CPU time")
    assert [each.measured.median for each in cores] == [1.5, 2]
