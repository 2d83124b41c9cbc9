"""The progress of a training: a live bar and a table on a terminal, lines `key=value` elsewhere.

It shows messages of the chief (`paceline.messages`). It neither trains nor reads files.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from paceline.errors import public
from paceline.messages import Block, Done, Evaluated, Message, Saved, Start, Transfer, Warn
from paceline.storage.files import silence, to_log

PLAIN_LINE_EVERY_S = 10.0
DIGITS = {"loss": 4, "accuracy": 4, "learning_rate": 5, "images_per_second": 0}
"""Metrics that a block shows, and how many digits of them."""
NOT_SHOWN = ("already", "bits", "chain", "left_out")
"""Fields of the result that the last line leaves out: the first line tells them, or a file."""


class ProgressDisplay:
    """`with ProgressDisplay(console) as progress: progress.handle(message)` for each message."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console()
        self._clock = clock
        self._live: Live | None = None
        self._start = Start(total_steps=0, steps_per_epoch=0)
        self._step = 0
        self._below = {"numbers": "", "saved": ""}
        self._begun_s = clock()
        self._blocks: deque[tuple[float, int]] = deque(maxlen=20)
        self._last_line_s = float("-inf")
        self._expected_end_s: float | None = None

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._render, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            with suppress(OSError):  # the terminal may be gone
                self._live.stop()
            self._live = None

    def handle(self, message: Message) -> None:
        """Show a message."""
        match message:
            case Start():
                self._on_start(message)
            case Block():
                self._on_block(message)
            case Evaluated():
                self._on_evaluation(message)
            case Saved():
                self._below["saved"] = f"saved at step {message.step:,}"
            case Transfer():
                self._print_now_and_then(message.text)
            case Warn():
                self._print(f"warning: {message.text}", style="yellow")
            case Done():
                self._on_result(message)

    def _on_start(self, message: Start) -> None:
        self._start, self._step = message, message.first_step
        self._below["numbers"] = "preparing the first steps ..."
        self._expected_end_s = None
        self._blocks.clear()
        if message.line:
            self._print(message.line)
        if self._step:
            self._print(f"resuming at step {self._step:,} of {message.total_steps:,}")

    def _on_block(self, message: Block) -> None:
        now, self._step = self._clock(), message.step
        self._blocks.append((now, self._step))  # not the start: the first block has compilation
        first_s, first_step = self._blocks[0]
        if self._step > first_step:
            seconds_per_step = (now - first_s) / (self._step - first_step)
            left = self._start.total_steps - self._step
            self._expected_end_s = now + seconds_per_step * left
        known = [name for name in DIGITS if name in message.metrics]
        numbers = [_measure(name, message.metrics[name], DIGITS[name]) for name in known]
        self._below["numbers"] = "  ".join(numbers)
        if self._live is None:
            parts = (self._position(), self._below["numbers"], self._time_left())
            self._print_now_and_then("  ".join(part for part in parts if part))

    def _on_evaluation(self, message: Evaluated) -> None:
        shown = [each for each in message.metrics.items() if not each[0].endswith("_count")]
        measures = [_measure(name, value, 4) for name, value in shown]
        if self._live is None:
            self._print("evaluation: " + "  ".join([*measures, f"(step {message.step:,})"]))
            return
        split = "validation" if "validation_accuracy" in message.metrics else "test"
        epoch = message.step / max(1, self._start.steps_per_epoch)
        own = [each for each in measures if each.startswith((f"{split} acc", f"{split} loss"))]
        self._print("  ".join([f"epoch {epoch:.2f}", *own]))

    def _on_result(self, message: Done) -> None:
        for_people = self._live is not None
        self.__exit__()
        if message.already:
            self._print("this run is finished; for a new one, change --run-dir or other settings")
        if for_people:
            self._print_table(message)
            return
        shown = [each for each in message.values.items() if each[0] not in NOT_SHOWN]
        self._print("  ".join(f"{name}={_result_value(value)}" for name, value in shown))

    def _print_table(self, message: Done) -> None:
        values, measures = message.values, ("test_accuracy", "test_loss")
        numbers = {name.replace("_", " "): values.get(name) for name in measures}
        rows = {name: f"{number:.4f}" for name, number in numbers.items() if number is not None}
        if at := values.get("evaluated_step"):
            rows["evaluated at"] = f"step {at:,}"
        if not values.get("finished"):
            rows["stopped at"] = f"step {values['step']:,} of {self._start.total_steps:,}"
        if not message.already:
            rows["time"] = _duration(self._clock() - self._begun_s)
        if speed := values.get("images_per_second"):
            rows["speed"] = f"{speed:,.0f} images/s"
        rows |= {"digest": values["state_sha256"], "folder": str(values["run_dir"])}
        for name, value in rows.items():
            self._print(f"{name:<15} {value}")
        if values.get("finished"):
            run = shlex.quote(rows["folder"])
            for line in ("", f"next: paceline eval {run}", f"      paceline report {run}"):
                self._print(line)

    def _print_now_and_then(self, line: str) -> None:
        if self._clock() - self._last_line_s >= PLAIN_LINE_EVERY_S:
            self._last_line_s = self._clock()
            self._print(line)

    def _print(self, line: str, style: str = "") -> None:
        # Not wrapped: a line stays one line in a log, and a digest can be copied.
        try:
            self._console.print(Text(public(line), style=style), soft_wrap=True)
        except (OSError, SystemExit) as error:  # nobody reads it (SystemExit), or the disk is full
            silence(self._console.file)
            self._console, reason = Console(quiet=True), getattr(error, "strerror", "nobody reads")
            to_log(f"paceline: cannot write to standard output ({reason}); the run continues")
            to_log(line)

    def _position(self) -> str:
        start, step = self._start, self._step
        epoch, epochs = (n / start.steps_per_epoch for n in (step, start.total_steps))
        return f"step {step:,}/{start.total_steps:,}  epoch {epoch:.2f}/{epochs:.4g}"

    def _time_left(self) -> str:
        if self._expected_end_s is None:
            return ""
        return f"{_duration(self._expected_end_s - self._clock())} left"

    def _render(self) -> Group | Text:
        if not self._start.total_steps:
            return Text("starting ...")
        columns = (Column(no_wrap=True), Column(ratio=1), Column(no_wrap=True))
        bar = Table.grid(*columns, expand=True, padding=(0, 2, 0, 0))
        steps = ProgressBar(self._start.total_steps, self._step)
        bar.add_row(self._position(), steps, self._time_left())
        below = [line for line in self._below.values() if line]
        return Group(bar, *(Text(line, overflow="ellipsis", no_wrap=True) for line in below))


def _measure(name: str, value: object, digits: int) -> str:
    number = f"{value:,.{digits}f}" if isinstance(value, int | float) else str(value)
    if name == "images_per_second":
        return f"{number} images/s"
    return f"{name.replace('_', ' ')} {number}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _result_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
