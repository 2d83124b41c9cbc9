"""The process of a worker: what it reports to its parent."""

import errno

import pytest

from paceline.errors import AddressTaken, PassingFault, UserError
from paceline.experiment.experiment import Experiment
from paceline.job import Job
from paceline.messages import Crash, Error, Message
from paceline.worker import Memory
from paceline.worker_process import report


class FullDisk:
    """A log on a disk that is full."""

    def write(self, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    flush = write


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (UserError("the disk is full"), Error("the disk is full"), 2),
        (PassingFault("cannot read b"), Error("cannot read b", passing=True), 2),
        (AddressTaken("cannot listen"), Error("cannot listen", address_taken=True), 2),
        (ValueError("first line\nsecond"), Crash("ValueError: first line"), 1),
        (KeyError(), Crash("KeyError: KeyError"), 1),
    ],
)
def test_every_error_is_reported_even_if_the_log_is_on_a_full_disk(
    error: Exception, message: Message, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", FullDisk())
    sent = list[Message]()
    job = Job(Experiment())
    assert report(error, job, sent.append, Memory()) == code
    assert sent == [message]
