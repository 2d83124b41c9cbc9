"""The progress display."""

import errno
import io
import os
from dataclasses import replace
from typing import Any

import pytest
import rich.console
from rich.console import Console

from paceline.api.progress import ProgressDisplay
from paceline.messages import Block, Done, Evaluated, Message, Saved, Start, Warn, Working

START = Start(total_steps=1000, steps_per_epoch=100, line="2 workers, 4 replicas")


RESULT = Done(
    {
        "step": 1000,
        "finished": True,
        "test_accuracy": 0.875,
        "images_per_second": 2345.6,
        "state_sha256": "ab" * 32,
        "run_dir": "runs/my run",
    }
)


SHOW_CURSOR = "\x1b[?25h"


def block(step: int, **values: Any) -> Block:
    metrics = {"loss": 0.5, "accuracy": 0.75, "learning_rate": 0.1, "images_per_second": 2345.6}
    return Block(step, metrics | values)


class Screen:
    """A console into memory, with a clock that is set by hand."""

    def __init__(self, terminal: bool = False, width: int = 80) -> None:
        self.file, self.now = io.StringIO(), 0.0
        self.console = Console(
            file=self.file, force_terminal=terminal, width=width, color_system=None, _environ={}
        )
        self.progress = ProgressDisplay(self.console, lambda: self.now)

    def show(self, *messages: tuple[float, Message]) -> list[str]:
        with self.progress:
            for self.now, message in messages:
                self.progress.handle(message)
                if self.progress._live:
                    self.progress._live.refresh()
        return self.file.getvalue().replace(SHOW_CURSOR, "").splitlines()


def test_elsewhere_than_on_a_terminal_a_line_is_written_every_ten_seconds() -> None:
    lines = Screen().show((0, START), *((5.0 * i, block(10 * i)) for i in range(1, 6)))
    assert lines[0] == "2 workers, 4 replicas"
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "step 10/1,000",
        "step 30/1,000",
        "step 50/1,000",
    ]
    assert (
        lines[2]
        == "step 30/1,000  epoch 0.30/10  loss 0.5000  accuracy 0.7500  learning rate 0.10000  "
        "2,346 images/s  8:05 left"
    )


def test_every_evaluation_and_warning_has_its_line() -> None:
    evaluation = Evaluated(100, {"test_accuracy": 0.8125, "test_loss": 0.5})
    lines = Screen().show(
        (0, START), (1, evaluation), (2, evaluation), (3, Warn("[red] /a/b is damaged"))
    )
    assert lines[1:3] == ["evaluation: test accuracy 0.8125  test loss 0.5000  (step 100)"] * 2
    assert lines[3] == "warning: [red] /a/b is damaged"


def test_elsewhere_the_result_is_the_last_line_for_programs_and_is_not_wrapped() -> None:
    result = Done(RESULT.values | {"left_out": ["bad.jpg: the file is empty"]})
    lines = Screen().show((0, START), (1, block(1000)), (2, result))
    assert lines[-1].split("  ") == [
        "step=1000",
        "finished=true",
        "test_accuracy=0.875",
        "images_per_second=2345.6",
        f"state_sha256={'ab' * 32}",
        "run_dir=runs/my run",
    ]


def test_a_terminal_ends_with_a_small_table_and_the_next_two_commands() -> None:
    lines = Screen(terminal=True).show((0, START), (1, block(1000)), (83, RESULT))
    assert lines[-8:] == [
        "test accuracy   0.8750",
        "time            1:23",
        "speed           2,346 images/s",
        f"digest          {'ab' * 32}",
        "folder          runs/my run",
        "",
        "next: paceline eval 'runs/my run'",
        "      paceline report 'runs/my run'",
    ]
    assert max(map(len, lines[-8:])) <= 80


def test_a_terminal_says_where_a_run_was_stopped() -> None:
    stopped = Done(RESULT.values | {"finished": False, "step": 10, "test_accuracy": None})
    lines = Screen(terminal=True).show((0, START), (1, block(10)), (83, stopped))
    assert "stopped at      step 10 of 1,000" in lines
    assert not any("next:" in line or "accuracy   " in line for line in lines[-5:])


def test_a_terminal_keeps_a_short_line_of_each_evaluation() -> None:
    measures = {"accuracy": 0.8125, "loss": 0.5, "top5": 1.0, "count": 48}
    metrics = {
        f"{split}_{name}": value
        for split in ("test", "validation")
        for name, value in measures.items()
    }
    lines = Screen(terminal=True).show(
        (0, START), (1, Evaluated(100, metrics)), (2, Evaluated(250, {"test_accuracy": 0.9}))
    )
    kept = [line[line.index("epoch") :] for line in lines if line.endswith(("0.5000", "0.9000"))]
    assert kept == [
        "epoch 1.00  validation accuracy 0.8125  validation loss 0.5000",
        "epoch 2.50  test accuracy 0.9000",
    ]


def test_a_terminal_has_a_bar_with_speed_measures_and_time_left() -> None:
    saved = Saved(200)
    screen = Screen(terminal=True, width=100)
    screen.show((0, START), (60, block(100)), (70, block(200)), (70, saved))
    text = screen.file.getvalue()
    last = text[text.rindex("step 200/1,000  epoch 2.00/10") :]
    assert "━" in last
    assert "1:20 left" in last
    assert "loss 0.5000  accuracy 0.7500  learning rate 0.10000  2,346 images/s" in last
    assert "saved at step 200" in last
    assert "preparing the first steps" in text


def test_the_time_left_forgets_the_compilation_in_the_first_block() -> None:
    lines = Screen().show((0, START), (100, block(100)), (110, block(200)), (120, block(300)))
    assert "left" not in lines[1], "the first block says nothing about the others"
    assert [line.split("  ")[-1] for line in lines[2:]] == ["1:20 left", "1:10 left"]


def test_a_resumed_run_says_where_it_goes_on_and_does_not_count_the_old_steps_as_speed() -> None:
    lines = Screen().show((0, replace(START, first_step=500)), (10, block(600)), (20, block(700)))
    assert lines[1] == "resuming at step 500 of 1,000"
    assert lines[3].endswith("0:30 left")


def test_a_loss_that_is_no_number_and_a_message_that_is_not_shown_do_not_break_it() -> None:
    lines = Screen().show(
        (0, START), (1, Working()), (3, block(1, loss=float("nan"), accuracy=None))
    )
    assert "loss nan  accuracy None" in lines[1]


def test_a_terminal_that_is_left_before_the_start_shows_that_it_is_starting() -> None:
    assert any("starting ..." in line for line in Screen(terminal=True).show((0, Working())))


@pytest.mark.parametrize("code", [errno.EPIPE, errno.ENOSPC, errno.EIO])
def test_output_that_fails_does_not_end_the_training_and_its_last_words_go_to_the_log(
    code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(code, os.strerror(code))

    class Console(rich.console.Console):
        def on_broken_pipe(self) -> None:
            raise SystemExit(1)  # as rich does, after it has closed standard output

    with ProgressDisplay(Console(file=Failing())) as progress:
        for message in (START, block(10), block(20), RESULT):
            progress.handle(message)
    logged = capsys.readouterr().err
    assert "cannot write to standard output" in logged
    assert logged.count("the run continues") == 1
    assert "2 workers, 4 replicas" in logged


def test_control_characters_and_secrets_are_not_shown() -> None:
    lines = Screen().show((0.0, Warn("class \x1b[31mred s3://a:b@c")))
    assert lines == [r"warning: class \x1b[31mred s3://a:***@c"]
