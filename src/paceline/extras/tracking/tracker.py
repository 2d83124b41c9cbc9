"""What all trackers share: a thread that sends, waits for a service that is away, and notes what
was sent, so that a resumed run goes on in the same tracker run without a gap or a repeat."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paceline.maths.evaluation import EvalResult
from paceline.maths.metrics import BlockResult, scalars
from paceline.messages import Send, Warn

RETRY_S = 10.0
"""Time between two attempts to reach a tracker that is away."""
FINISH_S = 30.0
"""Longest wait for a tracker at the end of a training."""
FINISH_DOWN_S = 3.0
"""The same, if the tracker was away before."""


class Client(Protocol):
    """A run in a tracker. Every method may raise anything: then it is tried again later."""

    def open(self, run_id: str) -> str:
        """Begin a run, or continue the one with this id; return its id."""
        ...

    def log(self, records: Sequence[tuple[int, dict[str, float]]]) -> None:
        """Send the numbers of some steps."""
        ...

    def finish(self, result: dict[str, Any], files: Sequence[Path]) -> None:
        """Send the result and the files, and end the run; `finished` may be false."""
        ...


@dataclass
class Notes:
    """What the run folder knows of a tracker run. Stored as JSON."""

    id: str = ""
    logged: int = 0
    """The last step whose metrics were sent."""
    done: bool = False
    """Whether the result of the finished run was sent."""


@dataclass(frozen=True)
class _End:
    result: dict[str, Any]
    files: list[Path] = field(default_factory=list)


class Tracking:
    """An action that gives metrics to a tracker, in a thread that training never waits for."""

    def __init__(
        self,
        name: str,
        client: Client,
        notes: Notes,
        earlier: Sequence[dict[str, Any]],
        files: Sequence[Path],
        save_notes: Callable[[Notes], None],
        send: Send,
        retry_s: float = RETRY_S,
    ) -> None:
        """`earlier` are the records of metrics.jsonl before this start; some may be unsent.

        `files` are sent at the end.
        """
        self._name, self._client, self._notes, self._files = name, client, notes, list(files)
        self._save_notes, self._send, self._retry_s = save_notes, send, retry_s
        self._queue: queue.SimpleQueue[tuple[int, dict[str, float]] | _End] = queue.SimpleQueue()
        self._unsent: list[tuple[int, dict[str, float]]] = []
        self._down = False
        self._opened = False
        self._last_error = ""
        for record in earlier:
            self._keep(record["step"], _numbers(record))
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"track-{name}")
        self._thread.start()

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        self._queue.put((block.step, _numbers(scalars(block, evaluation))))

    def finish(self, result: dict[str, Any]) -> None:
        """Send the result of this training, and wait a while for the tracker."""
        self._queue.put(_End(result, self._files))
        self._thread.join(FINISH_DOWN_S if self._down else FINISH_S)
        if self._thread.is_alive():
            self._send(
                Warn(
                    f"{self._name} did not get everything ({self._last_error or 'it is slow'}); "
                    "the run folder has it, and the next start with --track sends it"
                )
            )

    def _work(self) -> None:
        end: _End | None = None
        while True:
            try:
                item = self._queue.get(timeout=self._retry_s if self._waits(end) else None)
            except queue.Empty:
                item = None
            if isinstance(item, _End):
                end = item
            elif item:
                self._keep(*item)
            if self._try_to_send(end) and end:
                return

    def _waits(self, end: _End | None) -> bool:
        """Whether there is something to send that could not be sent yet."""
        return bool(self._unsent or end or not self._opened)

    def _keep(self, step: int, numbers: dict[str, float]) -> None:
        """Note what is to be sent; a step that was sent before a resume is not sent again."""
        if step > self._notes.logged:
            self._unsent.append((step, numbers))

    def _try_to_send(self, end: _End | None) -> bool:
        try:
            if not self._opened:
                self._notes.id = self._client.open(self._notes.id)
                self._opened = True
                self._save_notes(self._notes)
            if self._unsent:
                self._client.log(self._unsent)
                self._notes.logged = self._unsent[-1][0]
                self._unsent.clear()
                self._save_notes(self._notes)
            if end:
                self._client.finish(end.result, [file for file in end.files if file.exists()])
                self._notes.done = bool(end.result.get("finished"))
                self._save_notes(self._notes)
        except Exception as error:  # a tracker must not end a training
            self._report(error)
            return False
        if self._down:
            self._down = False
            self._send(Warn(f"{self._name} is back, and has everything"))
        return True

    def _report(self, error: Exception) -> None:
        lines = str(error).strip().splitlines() or [""]
        self._last_error = f"{type(error).__name__}: {lines[0][:200]}"
        if not self._down:
            self._down = True
            text = f"{self._name} cannot be reached ({self._last_error}); training continues"
            self._send(Warn(f"{text}, and what it missed is sent when it is back"))


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """Return what trackers can draw."""
    return {
        name: float(value)
        for name, value in values.items()
        if type(value) in (int, float) and name != "step"
    }
