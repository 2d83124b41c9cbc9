"""The messages of a worker to its parent: a frozen dataclass per kind, a line of JSON each.

`supervise` and the listeners decide what a message means.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.experiment.fields import Json

MESSAGES = "PACELINE_MESSAGES"
"""Environment variable with the file descriptor to which a worker writes its messages."""
NEIGHBORS = "PACELINE_NEIGHBORS"
"""Environment variable with the file descriptors through which workers of one machine exchange
vectors: a socket to each other worker, in their order."""

TOKEN = "PACELINE_TOKEN"
"""Environment variable with a secret that workers of several machines show each other."""
LOST = "another worker is gone"


class Message:
    """One of the kinds below."""


@dataclass(frozen=True)
class Alive(Message):
    """Sent every second by a thread of the worker. A stopped process sends none."""

    work: float = 0.0
    """Work of the process so far, in seconds: processor time, and reading at 20 MB/s. It grows
    while a worker computes or reads, and not while it hangs or waits."""
    clock: float = 0.0
    """The worker's monotonic clock in seconds: the parent may read several messages at once."""


@dataclass(frozen=True)
class Working(Message):
    """The engine begins a block or a batch of an evaluation."""


@dataclass(frozen=True)
class Start(Message):
    """All workers are connected, and training begins or continues at `first_step`."""

    total_steps: int
    steps_per_epoch: int
    first_step: int = 0
    line: str = ""
    """Every derived number on one line."""
    lease: int = 0
    """The number of the chief's lease of the run folder."""


@dataclass(frozen=True)
class Block(Message):
    """A worker has trained a block that ended at `step`; the chief adds the block's scalars."""

    step: int
    metrics: Json = field(default_factory=dict)
    evaluation_follows: bool = False
    """Whether the next message is the evaluation after this block."""


@dataclass(frozen=True)
class Evaluated(Message):
    """The measures of an evaluation after `step`, named test_* and validation_*."""

    step: int
    metrics: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Saved(Message):
    """The checkpoint of `step` is complete."""

    step: int


@dataclass(frozen=True)
class Transfer(Message):
    """A file was copied from or to remote storage."""

    text: str


@dataclass(frozen=True)
class Warn(Message):
    """A warning. Work continues."""

    text: str


@dataclass(frozen=True)
class Progress(Message):
    """How much of an evaluation or a prediction is done."""

    done: int
    total: int


@dataclass(frozen=True)
class Predictions(Message):
    """The next predictions, each as `vars` of a `results.predict.Prediction`."""

    predictions: list[Json]


@dataclass(frozen=True)
class Done(Message):
    """The work is done. After training, `values` are `run_dir` and the fields of result.json."""

    values: Json

    @property
    def already(self) -> bool:
        """Whether the run was finished before this command."""
        return bool(self.values.get("already"))


@dataclass(frozen=True)
class Error(Message):
    """The worker exits because of something that a person can correct."""

    text: str
    address_taken: bool = False
    """Another program listens at the worker's address."""
    passing: bool = False
    """The cause may pass: starting again may help."""


@dataclass(frozen=True)
class Crash(Message):
    """The worker exits because of an unexpected error."""

    text: str
    lost: bool = False
    """Only another worker is gone (`LOST`); the cause is there."""


@dataclass(frozen=True)
class Held(Message):
    """The answer to `held`, the step of the state in this worker's memory, and to `keep`, the step
    of the checkpoint that it has become."""

    step: int
    """-1 if there is no complete state that this worker can save."""


Send = Callable[[Message], None]
"""Takes each message: in a worker to its parent, in the parent to a listener."""


def to_line(message: Message) -> str:
    """Return a message as a line of JSON."""
    return json.dumps({"kind": type(message).__name__} | vars(message)) + "\n"


def from_line(line: str | bytes) -> Message:
    """Return the message of a line; raise ValueError for an incomplete one of a killed process."""
    values = json.loads(line)
    kinds = {kind.__name__: kind for kind in Message.__subclasses__()}
    return kinds[values.pop("kind")](**values)
