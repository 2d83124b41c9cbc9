"""Who of the survivors saves the state in its memory, without real workers."""

import queue
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.experiment.experiment import Experiment
from paceline.job import Cluster, Job, Run
from paceline.maths.state import State, StateLayout
from paceline.messages import Block, Held, Message
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
        return [Held(self._step)]


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


def memory_of(folder: RunFolder, value: float, job: Job) -> Memory:
    folder.open(Experiment(), {"train": 1})
    vectors = {"params": np.full(6, value, np.float32), "stats": np.ones(2, np.float32)}
    core = SimpleNamespace(layout=LAYOUT)
    return Memory((job, core, None, folder), State(3, vectors))


@pytest.mark.parametrize(("lease", "kept"), [(1, -1), (2, 3)])
def test_the_state_of_a_survivor_is_not_written_into_a_folder_that_was_taken_over(
    tmp_path: Path, lease: int, kept: int
) -> None:
    lock(tmp_path)
    lock(tmp_path)  # by another command
    folder, sent = RunFolder(tmp_path), list[Message]()
    job = Job(Experiment(), cluster=Cluster(("a:1", "b:1"), 1))
    answer({"request": "keep", "lease": lease}, memory_of(folder, 1.0, job), sent.append)
    assert sent == [Held(kept)]
    assert len(list(folder.checkpoints.iterdir())) == (kept > 0)


def test_a_survivor_that_dies_while_it_saves_leaves_the_last_checkpoint(run: Path) -> None:
    inbox: Inbox = queue.Queue()
    inbox.put((0, Held(9)))
    assert keep_newest([Survivor(run, 0, 9, inbox, ends=True)], [], inbox, 1) == -1


def test_a_silent_worker_is_not_asked(run: Path) -> None:
    inbox: Inbox = queue.Queue()
    workers = [Survivor(run, index, 9, inbox) for index in range(2)]
    assert keep_newest(workers, [0], inbox, 1) == 9
    assert not workers[0].asked


@pytest.mark.parametrize(("value", "kept"), [(1.0, 3), (np.nan, -1), (np.inf, -1)])
def test_a_state_that_is_not_finite_is_not_kept(tmp_path: Path, value: float, kept: int) -> None:
    folder, sent = RunFolder(tmp_path), list[Message]()
    folder.lock()
    memory = memory_of(folder, value, Job(Experiment()))
    answer({"request": "keep", "lease": 1}, memory, sent.append)
    assert sent == [Held(kept)]
    assert len(list(folder.checkpoints.iterdir())) == (kept == 3)
