"""Messages between workers and their parent, as lines of JSON."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.messages import (
    Alive,
    Block,
    Crash,
    Error,
    Evaluation,
    Message,
    Result,
    Saved,
    Start,
    Warn,
    from_line,
    to_line,
)

START = Start(total_steps=1000, steps_per_epoch=100, line="2 workers, 4 replicas")


RESULT = Result({"step": 1000, "finished": True, "test_accuracy": 0.875, "state_sha256": "ab" * 32})


def block(step: int, **values: Any) -> Block:
    metrics = {"loss": 0.5, "accuracy": 0.75, "learning_rate": 0.1, "images_per_second": 2345.6}
    return Block(step, metrics | values)


MESSAGES = [
    Alive(),
    START,
    block(7),
    Evaluation(7, {"test_accuracy": 0.5}),
    Saved(7, "a/b"),
    Warn("text"),
    Error("text", address_taken=True),
    Crash("text", lost=True),
    RESULT,
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_one_line_and_arrives_as_it_was_sent(message: Message) -> None:
    line = to_line(message)
    assert line.count("\n") == 1
    assert from_line(line) == message


def test_an_incomplete_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="Unterminated"):
        from_line(to_line(Warn("hello"))[:20])
