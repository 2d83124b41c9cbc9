"""The progress of a training: a live bar on a terminal, a line now and then elsewhere.

It shows the messages that come from the chief (`paceline.messages`). It neither trains nor reads
files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.messages import Block, Evaluation, Message, Result, Saved, Start, Transfer, Warn

PLAIN_LINE_EVERY_S = 10.0


class Progress:
    """`with Progress(console) as progress: progress.handle(message)` for each message."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console()
        self._clock = clock
        self._live: Live | None = None
        self._total_steps = 0
        self._steps_per_epoch = 0
        self._step = 0
        self._block: dict[str, Any] = {}
        self._evaluation = ""
        self._saved = ""
        self._times: deque[tuple[float, int]] = deque(maxlen=20)
        self._only_start_timed = True
        self._last_line_s = float("-inf")
        self._expected_end_s: float | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._render, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_live()

    def handle(self, message: Message) -> None:
        """Show a message."""
        match message:
            case Start():
                self._on_start(message)
            case Block():
                self._on_block(message)
            case Evaluation():
                self._on_evaluation(message)
            case Saved():
                self._saved = f"saved at step {message.step:,}"
            case Transfer():
                self._print_now_and_then(message.text)
            case Warn():
                self._print(f"warning: {message.text}", style="yellow")
            case Result():
                self._on_result(message)

    def _on_start(self, message: Start) -> None:
        self._total_steps = message.total_steps
        self._steps_per_epoch = message.steps_per_epoch
        self._step = message.first_step
        self._block = {}
        self._expected_end_s = None
        self._times.clear()
        self._times.append((self._clock(), self._step))
        self._only_start_timed = True
        if message.line:
            self._print(message.line)
        if self._step:
            self._print(f"resuming at step {self._step:,} of {self._total_steps:,}")

    def _on_block(self, message: Block) -> None:
        self._step = message.step
        self._block = message.metrics
        self._time_block(self._clock())
        if self._live is None:
            parts = (self._position(), self._numbers(), self._time_left())
            self._print_now_and_then("  ".join(part for part in parts if part))

    def _time_block(self, now: float) -> None:
        # The first block contains compilation: it counts only until there is a second one.
        if self._only_start_timed and len(self._times) > 1:
            self._times.popleft()
            self._only_start_timed = False
        self._times.append((now, self._step))
        first_s, first_step = self._times[0]
        if self._step > first_step and not self._only_start_timed:
            seconds_per_step = (now - first_s) / (self._step - first_step)
            # One number, because the thread that draws reads it while this one works.
            self._expected_end_s = now + seconds_per_step * (self._total_steps - self._step)

    def _on_evaluation(self, message: Evaluation) -> None:
        measures = [
            f"{name.replace('_', ' ')} {_number(value, 4)}"
            for name, value in message.metrics.items()
            if not name.endswith("_count")
        ]
        self._evaluation = "  ".join([*measures, f"(step {message.step:,})"])
        if self._live is None:
            self._print(f"evaluation: {self._evaluation}")

    def _on_result(self, message: Result) -> None:
        self._stop_live()
        if message.already:
            self._print(
                "this run is finished; give another --run-dir or other settings for a new one"
            )
        shown = {name: value for name, value in message.values.items() if name != "already"}
        self._print("  ".join(f"{name}={_result_value(value)}" for name, value in shown.items()))

    def _print_now_and_then(self, line: str) -> None:
        if self._clock() - self._last_line_s >= PLAIN_LINE_EVERY_S:
            self._last_line_s = self._clock()
            self._print(line)

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, line: str, style: str = "") -> None:
        # Not wrapped: a line stays one line in a log, and a digest can be copied.
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _position(self) -> str:
        position = f"step {self._step:,}/{self._total_steps:,}"
        if not self._steps_per_epoch:
            return position
        epoch, epochs = (n / self._steps_per_epoch for n in (self._step, self._total_steps))
        return f"{position}  epoch {epoch:.2f}/{epochs:.4g}"

    def _numbers(self) -> str:
        digits = {"loss": 4, "accuracy": 4, "learning_rate": 5}
        parts = [
            f"{name.replace('_', ' ')} {_number(self._block[name], digits[name])}"
            for name in digits
            if name in self._block
        ]
        if "images_per_second" in self._block:
            parts.append(f"{_number(self._block['images_per_second'], 0)} images/s")
        return "  ".join(parts)

    def _time_left(self) -> str:
        if self._expected_end_s is None:
            return ""
        return f"{_duration(max(0.0, self._expected_end_s - self._clock()))} left"

    def _render(self) -> Group | Text:
        if not self._total_steps:
            return Text("starting ...")
        bar = Table.grid(expand=True, padding=(0, 2, 0, 0))
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(self._position(), ProgressBar(self._total_steps, self._step), self._time_left())
        below = (self._numbers() or "preparing the first steps ...", self._evaluation, self._saved)
        return Group(
            bar, *(Text(line, overflow="ellipsis", no_wrap=True) for line in below if line)
        )


def _number(value: Any, digits: int) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else str(value)


def _result_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
