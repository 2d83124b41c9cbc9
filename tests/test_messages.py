"""Messages between workers and their parent, as lines of JSON."""

import pytest

from paceline.messages import (
    Alive,
    Block,
    Crash,
    Done,
    Error,
    Evaluated,
    Message,
    Saved,
    Start,
    Warn,
    from_line,
    to_line,
)

MESSAGES = [
    Alive(),
    Start(total_steps=1000, steps_per_epoch=100, line="2 workers, 4 replicas"),
    Block(7, {"loss": 0.5, "images_per_second": 2345.6}),
    Evaluated(7, {"test_accuracy": 0.5}),
    Saved(7),
    Warn("text"),
    Error("text", address_taken=True),
    Crash("text", lost=True),
    Done({"step": 1000, "finished": True, "state_sha256": "ab" * 32}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_one_line_and_arrives_as_it_was_sent(message: Message) -> None:
    line = to_line(message)
    assert line.count("\n") == 1
    assert from_line(line) == message
    with pytest.raises(ValueError, match=r"Unterminated|delimiter|Expecting"):
        from_line(line[:-2])
