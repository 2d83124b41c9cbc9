"""Who of the survivors saves the state in its memory, without real workers."""

from __future__ import annotations

import base64
import queue
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.experiment.experiment import Experiment
from paceline.job import Job, Run
from paceline.maths.state import State, StateLayout
from paceline.messages import Block, Held, Message, Piece
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.survivor import answer
from paceline.storage.lock import FileLock
from paceline.supervise import recovery
from paceline.supervise.interface import Inbox
from paceline.supervise.recovery import keep_newest
from paceline.worker import Memory

LAYOUT = StateLayout({"params": (("kernel", (2, 3)),), "stats": (("mean", (2,)),)})


class Survivor:
    """Answers requests like a worker; with step None it never answers, -1: it is torn."""

    def __init__(
        self, run: Path, index: int, step: int | None, inbox: Inbox, ends: bool = False
    ) -> None:
        self.job = Job(Experiment(), run=Run(run_dir=str(run)))
        self.asked = list[str]()
        self._index, self._step, self._inbox, self._ends = index, step, inbox, ends

    def poll(self) -> None:
        """It runs."""

    def ask(self, request: str, **facts: int) -> None:
        self.asked.append(request)
        if self._step is None:
            return
        for message in self._answers(request):
            self._inbox.put((self._index, message))

    def _answers(self, request: str) -> list[Message | None]:
        if self._ends:
            return [None]
        if request == "held":
            return [Block(3), Held(self._step)]
        pieces = [Piece(base64.b64encode(part).decode()) for part in (b"whole", b" file")]
        return [*pieces, Held(self._step, "step-00000009.safetensors")]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose chief had the lease 1."""
    (tmp_path / "checkpoints").mkdir()
    lock(tmp_path)
    return tmp_path


def lock(run: Path) -> None:
    holder = FileLock(run / "lock", "training")
    holder.acquire()
    holder.release()


@pytest.mark.parametrize(
    ("steps", "kept", "saver"),
    [((8, 9, 9), 9, 1), ((9, 9), 9, 0), ((-1, 9), 9, 1), ((-1, -1), -1, None), ((None, 9), 9, 1)],
    ids=["newest", "chief of equals", "one torn", "all torn", "one silent"],
)
def test_the_newest_whole_state_is_saved_once(
    steps: tuple[int | None, ...],
    kept: int,
    saver: int | None,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "ANSWER_S", 0.3)
    inbox: Inbox = queue.Queue()
    workers = [Survivor(run, index, step, inbox) for index, step in enumerate(steps)]
    assert keep_newest(workers, [], inbox, 1) == kept
    asked = [index for index, worker in enumerate(workers) if "keep" in worker.asked]
    assert asked == ([] if saver is None else [saver])
    written = {path.name: path.read_bytes() for path in (run / "checkpoints").iterdir()}
    assert written == ({} if saver is None else {"step-00000009.safetensors": b"whole file"})


def test_the_state_of_a_survivor_is_not_written_into_a_folder_that_was_taken_over(
    run: Path,
) -> None:
    lock(run)  # by another command
    for lease, kept in ((1, -1), (2, 9)):
        inbox: Inbox = queue.Queue()
        workers = [Survivor(run, index, 9, inbox) for index in range(2)]
        assert keep_newest(workers, [0], inbox, lease) == kept
        assert not workers[0].asked, "it was silent"
        assert len(list((run / "checkpoints").iterdir())) == (kept > 0)


def test_a_survivor_that_dies_while_it_saves_leaves_the_last_checkpoint(run: Path) -> None:
    inbox: Inbox = queue.Queue()
    inbox.put((0, Held(9)))
    assert keep_newest([Survivor(run, 0, 9, inbox, ends=True)], [], inbox, 1) == -1
    assert not list((run / "checkpoints").iterdir())


@pytest.mark.parametrize(("value", "kept"), [(1.0, 3), (np.nan, -1), (np.inf, -1)])
def test_a_state_that_is_not_finite_is_not_kept(tmp_path: Path, value: float, kept: int) -> None:
    folder, sent = RunFolder(tmp_path), list[Message]()
    folder.lock()
    folder.checkpoints.mkdir(exist_ok=True)
    core = SimpleNamespace(layout=LAYOUT)
    vectors = {"params": np.full(6, value, np.float32), "stats": np.ones(2, np.float32)}
    memory = Memory((Job(Experiment()), core, None, folder), State(3, vectors))
    answer({"request": "keep", "lease": 1}, memory, sent.append)
    assert sent == [Held(kept)]
    assert len(list(folder.checkpoints.iterdir())) == (kept == 3)
