"""`paceline diff`: whether two runs are equal, where they part, and why as far as they tell."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.errors import UserError
from paceline.experiment.experiment import MOVABLE
from paceline.experiment.fields import diff
from paceline.extras.proof.differences import (
    Chain,
    Difference,
    find_difference,
    is_entry,
    read_chain,
    workers_of,
)
from paceline.extras.proof.replay import How, Piece, check_can_replay, train_again
from paceline.messages import Send
from paceline.run_folder.checkpoint_file import ANY_RUN, read_variables
from paceline.run_folder.checkpoints import file_of, list_steps
from paceline.run_folder.folder import RunFolder


@dataclass(frozen=True)
class Comparison:
    """What is known about two runs."""

    steps: int
    """The last step of which both have recorded a digest."""
    difference: Difference | None
    rows: list[tuple[str, str, str]]
    """What a person wants to see of both."""
    reasons: list[str]
    """What differs between the folders."""
    replayed: list[str] = field(default_factory=list)
    """What training again has shown."""

    def __str__(self) -> str:
        if self.difference:
            return f"DIFFERENT from {self.difference}"
        if not self.steps:
            return "cannot be compared: there is no step of which both have recorded a digest"
        return f"equal in all recorded steps up to step {self.steps:,}"


def compare(one: RunFolder, other: RunFolder) -> Comparison:
    """Compare what two runs have recorded."""
    chains = [read_chain(run) for run in (one, other)]
    for run, chain in zip((one, other), chains, strict=True):
        if chain.fault:
            raise UserError(f"{run.where} cannot be compared: {chain.fault}")
    common = chains[0].states.keys() & chains[1].states.keys()
    last = max([0, *common, *(chains[0].signatures.keys() & chains[1].signatures.keys())])
    difference = find_difference(chains[0], chains[1], 0, last)
    facts = [_facts(run) for run in (one, other)]
    rows = [(name, facts[0][name], facts[1][name]) for name in facts[0]]
    reasons = [*_reasons(one, other), *_starts(one, difference), *_starts(other, difference)]
    return Comparison(max(common, default=0), difference, rows, reasons)


def _facts(run: RunFolder) -> dict[str, str]:
    result, config, starts = run.read_result() or {}, run.config(), run.starts.read()
    accuracy = result.get("test_accuracy")
    places = [f"{each['place']} x {each['workers']}" for each in starts]
    return {
        "step": f"{result.get('step', 0):,}",
        "accuracy": "-" if accuracy is None else f"{accuracy:.4f}",
        "state": str(result.get("state_sha256", "-"))[:16],
        "chain": str(result.get("chain", "-"))[:16],
        "experiment": run.experiment().digest(MOVABLE),
        "data": str(config["data"].get("content", "-")),
        "kernels": run.kernels(),
        "trained by": ", ".join(dict.fromkeys(places)) or "-",
        "CPU": ", ".join(dict.fromkeys(str(each["machine"]["cpu"]) for each in starts)) or "-",
    }


def _reasons(one: RunFolder, other: RunFolder) -> Iterator[str]:
    """Yield what differs between the folders and decides the numbers."""
    yield from diff(one.experiment().to_json(), other.experiment().to_json(), MOVABLE)
    names = ("data", "code", "versions", "kernels")
    old, new = ({name: run.config().get(name) for name in names} for run in (one, other))
    yield from diff(old, new)


def _starts(run: RunFolder, difference: Difference | None) -> Iterator[str]:
    """Yield the starts after which a run differs, and who computed what differs."""
    for start in run.starts.read() if difference else ():
        if difference and difference.after <= start["step"] < difference.step and start["step"]:
            yield f"{run.where} continued at step {start['step']:,}"
    if difference and (computed := workers_of(run, difference)):
        yield f"in {run.where}{computed}"


def replay_both(runs: list[RunFolder], found: Comparison, how: How, listen: Send) -> list[str]:
    """Train both runs again to where they part; return what that shows, a line for each thing."""
    if not found.difference:
        return []
    chains = [read_chain(run, whole=False) for run in runs]
    piece = Piece(_common_start(runs, chains, found.difference.after), found.difference.step)
    for run in runs:
        check_can_replay(run, how)
    with tempfile.TemporaryDirectory(prefix="paceline-diff-") as folder:
        while True:
            paths = [Path(folder, f"{name}-{piece.stop}") for name in ("one", "other")]
            pairs = zip(runs, paths, strict=True)
            again = [train_again(run, piece, how, path, listen) for run, path in pairs]
            parted = find_difference(again[0], again[1], *piece)
            if parted is None:
                return [*_who_is_wrong(runs, chains, again, piece)]
            if parted.step == piece.stop:
                break
            piece = Piece(piece.start, parted.step)
        files = [file_of(path / "checkpoints", piece.stop) for path in paths]
        tensors = [read_variables(file, piece.stop, ANY_RUN) for file in files]
    return [f"trained again, they part in {parted}", *_largest(tensors[0], tensors[1])]


def _common_start(runs: list[RunFolder], chains: list[Chain], last: int) -> int:
    """Return the last step up to `last` of which both have a checkpoint of the same state."""
    if any(is_entry(run) for run in runs):
        return 0
    both = set(list_steps(runs[0].checkpoints)) & set(list_steps(runs[1].checkpoints))
    states = [chain.states for chain in chains]
    return max([0, *(s for s in both if s <= last and states[0].get(s) == states[1].get(s))])


def _who_is_wrong(
    runs: list[RunFolder], chains: list[Chain], again: list[Chain], piece: Piece
) -> Iterator[str]:
    yield f"trained again from step {piece.start:,}, both give the same"
    for run, recorded, found in zip(runs, chains, again, strict=True):
        wrong = find_difference(recorded, found, *piece)
        computed = workers_of(run, wrong) if wrong else ""
        says = f"was not what training gives: {wrong}" if wrong else "gave the same, too"
        yield f"{run.where} {says}{computed}"


def _largest(one: dict[str, np.ndarray], other: dict[str, np.ndarray], most: int = 8) -> list[str]:
    """Return the tensors that differ, the largest difference first."""
    lines, differs = list[str](), dict[str, float]()
    for name in sorted(one.keys() | other.keys()):
        a, b = one.get(name), other.get(name)
        if a is None or b is None or a.shape != b.shape:
            lines.append(f"only one of them has {name}, or it has a different shape")
        elif not np.array_equal(a, b):
            differs[name] = float(np.abs(a - b).max(initial=0))
    largest = sorted(differs, key=lambda name: -differs[name])[:most]
    lines += [f"{name} differs by up to {differs[name]:.3g}" for name in largest]
    rest = len(differs) - len(largest)
    return [*lines, f"and {rest} more tensors differ"] if rest > 0 else lines
