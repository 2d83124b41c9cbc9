"""Training a part of a run again, as an ordinary training in a folder of its own."""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UserError
from paceline.experiment.fields import diff
from paceline.extras.proof.differences import (
    Chain,
    Difference,
    find_difference,
    is_entry,
    read_chain,
)
from paceline.job import Job, Place, Run
from paceline.kernels.library import ARITHMETIC
from paceline.launch import launch
from paceline.messages import Block, Message, Progress, Send, Warn
from paceline.results.in_worker import check_trust
from paceline.run_folder.checkpoints import file_of, list_steps
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import explained
from paceline.versions import library_versions, machine

CANNOT = "cannot be checked"
OWN_DATA = "pass the run's own data with --data.dir"


class Piece(NamedTuple):
    """The steps (start, stop] of a run. It has the state after `start`: a checkpoint, or none."""

    start: int
    stop: int

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.stop - self.start


@dataclass(frozen=True)
class How:
    """How pieces are trained again on this machine. It never changes the numbers."""

    workers: int = 1
    data_dir: str = ""
    """Where the data is now. Empty means where the training found it."""
    trust_code: bool = False


def check_can_replay(run: RunFolder, how: How) -> None:
    """Raise UserError if a run cannot be trained again here."""
    if run.experiment().sync.method == "async":
        raise UserError(f"{run.where} {CANNOT}: asynchronous training has no fixed bits")
    check_trust(run, "evaluate", how.trust_code)
    found = re.search(r"\(arithmetic (\d+)\)", str((run.read_result() or {}).get("bits")))
    version = int(found[1]) if found else ARITHMETIC
    if is_entry(run):
        from paceline.extras.zoo import find_row

        version = find_row(run.path.name).arithmetic
    if version != ARITHMETIC:
        raise UserError(
            f"{run.path.name} {CANNOT}: it was trained with version {version} of the "
            f"arithmetic, and this is version {ARITHMETIC}; its weights can be used"
        )


def other_bits(run: RunFolder, again: RunFolder) -> str:
    """Return why this machine may give other bits than a run; empty if it gives the same."""
    bits = str((again.read_result() or {}).get("bits"))
    if bits.startswith("any CPU"):
        return ""
    changed, here = diff(run.config()["versions"], library_versions()), str(machine()["cpu"])
    then = dict.fromkeys(str(start["machine"]["cpu"]) for start in run.starts.read())
    changed += [f"CPU: {cpu} -> {here}" for cpu in then if cpu != here]
    return f"its bits need {bits}; {', '.join(changed)}" if changed else ""


def copy_start(run: RunFolder, start: int, folder: Path) -> None:
    """Make `folder` a run that continues `run` from step `start`."""
    if (folder / "config.json").exists():  # an earlier command began the piece
        return
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    if start:
        file = file_of(run.checkpoints, start)
        if start not in list_steps(run.checkpoints):
            raise UserError(
                f"{run.where} {CANNOT} from step {start:,} on: its checkpoint was removed; train "
                "with a larger --keep"
            )
        with explained("copy", file):
            shutil.copyfile(file, folder / "checkpoints" / file.name)
    if (run.path / "code").exists():
        shutil.copytree(run.path / "code", folder / "code", dirs_exist_ok=True)
    for name in ("metrics.jsonl", "config.json"):  # early stopping looks back
        if (run.path / name).exists() and (name != "metrics.jsonl" or start):
            shutil.copyfile(run.path / name, folder / name)


def train_again(
    run: RunFolder, piece: Piece, how: How, folder: Path, listen: Send, wanted: Chain | None = None
) -> Chain:
    """Train a piece of a run again and return its chain; end early if it differs from `wanted`."""
    copy_start(run, piece.start, folder)
    copy = RunFolder(folder)
    known = read_chain(copy, whole=False)
    if known.last >= piece.stop or (wanted and find_difference(wanted, known, *piece)):
        return known  # an earlier command trained it

    def watch(message: Message) -> None:
        if isinstance(message, Warn):
            listen(message)
        if isinstance(message, Block):
            listen(Progress(message.step - piece.start, piece.steps))
            if wanted and find_difference(wanted, read_chain(copy, whole=False), *piece):
                raise StopIteration

    experiment, own = run.experiment(), run.kernels() == "own"
    data = replace(experiment.data, dir=how.data_dir or run.data_dir())
    experiment = replace(experiment, data=data, kernels="own" if own else "tensorflow")
    to_here = Run(str(folder), stop_at=piece.stop, trust_code=how.trust_code)
    try:
        result = launch(Job(experiment, Place(on="local", workers=how.workers), to_here), watch)
    except UserError as error:
        text = str(error).replace(str(folder), "it").replace("use another --run-dir", OWN_DATA)
        raise UserError(f"{run.where} {CANNOT}: {text}") from error
    found = read_chain(copy, whole=False)
    if "state_sha256" in result:  # of an entry of the zoo, any step can be the last
        found.states[result["step"]] = result["state_sha256"]
    return found


def first_difference(
    run: RunFolder, chain: Chain, piece: Piece, how: How, folder: Path, listen: Send
) -> Difference | None:
    """Train a piece again; return where the chain of the run parts from it."""
    found = train_again(run, piece, how, folder, listen, chain)
    difference = find_difference(chain, found, *piece)
    if difference and (reason := other_bits(run, RunFolder(folder))):
        raise UserError(f"{run.where} {CANNOT}: it differs in {difference}, but {reason}")
    if not difference and piece.stop not in found.states:
        raise UserError(f"{run.where} {CANNOT}: the repetition ended before step {piece.stop:,}")
    return difference
