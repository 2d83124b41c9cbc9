"""Fields of dataclasses: their ranges and types, in Python and in JSON."""

import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from paceline.errors import UserError
from paceline.experiment.experiment import Data, Experiment, Group, Optimizer, Scaling
from paceline.experiment.fields import Range, check_fields, from_json, to_json
from paceline.job import Job, Place
from paceline.requests import PredictRequest


@dataclass(frozen=True)
class Inner:
    sizes: Annotated[tuple[int, ...], Range(1, 9)] = ()
    mean: tuple[float, float] | Literal["auto"] = (0.0, 1.0)


@dataclass(frozen=True)
class Outer:
    count: Annotated[int, Range(0, 1_000)] = 0
    rate: Annotated[float | None, Range(0, 1, excludes_highest=True)] = None
    kind: Literal["a", "b"] = "a"
    on: bool = False
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("limits", "text", "inside", "outside"),
    [
        (Range(1, 65_536), "1 to 65,536", (1, 65_536), (0, 65_537)),
        (Range(0), "0 or more", (0, 2**31 - 1), (-1, 2**31, math.nan)),
        (Range(0, math.inf), "0 or more", (0, 1e30), (-1,)),
        (Range(0, 1, excludes_highest=True), "0 to below 1", (0, 0.999), (1, -0.1)),
        (Range(0, 1, excludes_lowest=True), "above 0 and at most 1", (0.1, 1), (0, 1.1)),
        (Range(0, excludes_lowest=True), "above 0", (1,), (0,)),
    ],
)
def test_a_range_contains_its_numbers_and_says_which(
    limits: Range, text: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    assert str(limits) == text
    assert all(number in limits for number in inside)
    assert not any(number in limits for number in outside)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 1.5}, "count is 1.5; it must be a whole number"),
        ({"count": True}, "count is True; it must be a whole number"),
        ({"count": 2_000}, "count is 2000; it must be 0 to 1,000"),
        ({"rate": "x"}, "rate is 'x'; it must be a number"),
        ({"rate": math.nan}, "rate is nan; it must be a finite number"),
        ({"rate": 1}, "rate is 1; it must be 0 to below 1"),
        ({"kind": "c"}, "kind is 'c'; it must be one of 'a', 'b'"),
        ({"kind": {}}, "kind is {}; it must be one of"),
        ({"on": 1}, "on is 1; it must be true or false"),
        ({"inner": 3}, "inner is 3; it must be an object"),
        ({"inner": {"sizes": [1, 10]}}, r"inner.sizes is \(1, 10\); it must be numbers, each 1"),
        ({"inner": {"sizes": 4}}, "inner.sizes is 4; it must be whole numbers"),
        ({"inner": {"mean": [1]}}, r"inner.mean is \(1,\); it must be 2 numbers, or 'auto'"),
        ({"inner": {"mean": "x"}}, "inner.mean is 'x'; it must be 2 numbers, or 'auto'"),
        ({"inner": {"seizes": []}}, "unknown field 'inner.seizes'.*did you mean 'sizes'"),
    ],
)
def test_a_value_that_is_not_allowed_is_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        from_json(Outer, values)
    assert "\n" not in str(error.value)


def test_a_part_of_the_wrong_class_is_refused() -> None:
    with pytest.raises(UserError, match=r"data is Scaling.*; it must be a Data"):
        Experiment(data=Scaling())  # type: ignore[arg-type]
    check_fields(Outer(count=3, rate=0, inner=Inner(mean="auto")))


def test_json_gives_the_same_dataclass_back_with_whole_numbers_as_floats() -> None:
    value = Outer(count=3, rate=0, inner=Inner(sizes=(1, 2), mean=(1, 2)))
    plain = json.loads(json.dumps(to_json(value)))
    assert plain["inner"] == {"sizes": [1, 2], "mean": [1.0, 2.0]}
    assert isinstance(plain["rate"], float)
    assert from_json(Outer, plain) == value
    groups = Optimizer(groups=(Group("*/kernel", rate=2, decay=None),))
    experiment = Experiment(optimizer=groups, data=Data(validation=3))
    assert Experiment.from_json(json.loads(json.dumps(experiment.to_json()))) == experiment
    job = Job(experiment, Place(workers=2), request=PredictRequest(("a.png",), views="mirror"))
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
