"""`paceline verify`: whether a run is what training gives, checked on pieces of it."""

import hashlib
import random
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError
from paceline.experiment.plan import Plan
from paceline.extras.proof.differences import (
    Chain,
    Difference,
    find_difference,
    is_entry,
    plan_of,
    read_chain,
    workers_of,
)
from paceline.extras.proof.replay import (
    CANNOT,
    How,
    Piece,
    check_can_replay,
    copy_start,
    first_difference,
    train_again,
)
from paceline.messages import Message, Progress, Send
from paceline.run_folder.checkpoint_file import Damaged, read_digest
from paceline.run_folder.checkpoints import file_of, list_steps
from paceline.run_folder.finding import existing_run
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import explained
from paceline.storage.locations import cache_folder, is_remote

ENOUGH = 0.9
"""Of the share: no further piece is trained for the rest."""


@dataclass(frozen=True)
class Verdict:
    """What checking a run has found."""

    checked: int
    """Number of steps that were trained again."""
    steps: int
    """Number of steps that the run has recorded."""
    seconds: float
    finding: str = ""
    """What differs; empty if all is equal."""
    note: str = ""
    """What this does not prove."""

    def __str__(self) -> str:
        share = f"{100 * self.checked / self.steps:.3g} % of {self.steps:,} steps"
        outcome = "DIFFERENT" if self.finding else "equal"
        return f"checked {share} in {self.seconds:.0f} s: {outcome}"


def verify(path: str, share: float, how: How, seed: int, listen: Send) -> Verdict:
    """Check a share of the steps of a run; with a share of 1, all of them from the first on.

    An interrupted check continues where it was, because each piece is a run in the cache.
    """
    began, run = time.monotonic(), existing_run(path)
    check_can_replay(run, how)
    chain = read_chain(run)
    if not chain.last:
        raise UserError(f"{run.where} {CANNOT}: it has recorded no digest (--no-chain)")
    if finding := chain.fault or _wrong_checkpoint(run, chain):
        return Verdict(0, chain.last, time.monotonic() - began, finding)
    pieces = [Piece(0, chain.last)]
    if share < 1:
        pieces = choose(starts_of(run), [*chain.states], plan_of(run), share, seed)
        reached = sum(piece.steps for piece in pieces)
        if reached < ENOUGH * share * chain.last and not is_entry(run):
            raise UserError(_pruned(run, reached, chain, share))
    where = run.where if is_remote(run.where) else run.path.resolve()
    key = f"{where} {chain.states[chain.last]} {share} {seed}"
    work = cache_folder() / "verify" / hashlib.sha256(key.encode()).hexdigest()[:16]
    try:
        checked, finding = _check_pieces(run, chain, pieces, how, work, listen)
    except UserError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work)
    return Verdict(checked, chain.last, time.monotonic() - began, finding, _unproven(run, share))


def _check_pieces(
    run: RunFolder, chain: Chain, pieces: list[Piece], how: How, work: Path, listen: Send
) -> tuple[int, str]:
    """Train pieces again until one differs; return the number of steps, and what differs."""
    checked, total = 0, sum(piece.steps for piece in pieces)
    folders = {piece: work / f"{piece.start}-{piece.stop}" for piece in pieces}
    for piece, own in folders.items():  # now, because a training under way removes checkpoints
        copy_start(run, piece.start, own)
    for piece, own in folders.items():

        def progress(news: Message, before: int = checked) -> None:
            listen(Progress(before + news.done, total) if isinstance(news, Progress) else news)

        if difference := first_difference(run, chain, piece, how, own, progress):
            finding = explain(run, piece, difference, how, own, listen)
            return checked + difference.step - piece.start, finding
        checked += piece.steps
    return checked, ""


def explain(
    run: RunFolder, piece: Piece, difference: Difference, how: How, folder: Path, listen: Send
) -> str:
    """Return a difference in words, after training once more up to it: either side can be wrong.

    `folder` has the piece as it was trained again, perhaps with a checkpoint that the run has not.
    """
    copy = RunFolder(folder)
    first, own = read_chain(copy, whole=False), list_steps(copy.checkpoints)
    start = max(step for step in (piece.start, *own) if step <= difference.after)
    again, source = Piece(start, difference.step), copy if start in own else run
    with tempfile.TemporaryDirectory(prefix="paceline-verify-") as temporary:
        second = train_again(source, again, how, Path(temporary, "run"), listen)
    if find_difference(first, second, *again):
        return f"{difference}, but this machine gave two different results for it: do not trust it"
    return f"{difference}{workers_of(run, difference)}"


def choose(
    starts: Iterable[int], recorded: Iterable[int], plan: Plan, share: float, seed: int
) -> list[Piece]:
    """Return random pieces of about a share of the recorded steps. A piece begins at one of
    `starts` and ends at the latest where the next checkpoint was planned."""
    ends, pieces = sorted(recorded), list[Piece]()
    used = [start for start in starts if start < ends[-1]]
    random.Random(seed).shuffle(used)
    left, enough = share * ends[-1], (1 - ENOUGH) * share * ends[-1]
    for start in used:
        later = [end for end in ends if end > start]
        planned = min(filter(plan.saves_at, later), default=later[-1])
        last = min(planned, start + left)
        if left > enough:
            pieces.append(Piece(start, max([later[0], *(end for end in later if end <= last)])))
            left -= pieces[-1].steps
    return merged(sorted(pieces))


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces, in order, with those that follow each other as one."""
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1].stop == piece.start:
            piece = Piece(found.pop().start, piece.stop)
        found.append(piece)
    return found


def starts_of(run: RunFolder) -> list[int]:
    """Return the steps at which pieces begin: 0, and the planned checkpoints that are left. From
    others, which a stop or the best evaluation has saved, pieces would overlap."""
    return [0, *filter(plan_of(run).saves_at, [] if is_entry(run) else list_steps(run.checkpoints))]


def _wrong_checkpoint(run: RunFolder, chain: Chain) -> str:
    """Return which checkpoint is not the state that the chain recorded."""
    for step in () if is_entry(run) else list_steps(run.checkpoints):
        file, found = file_of(run.checkpoints, step), chain.states.get(step, "")
        try:
            with explained("read", file), suppress(FileNotFoundError):  # it was removed just now
                found = read_digest(file, step)
        except Damaged as error:
            raise UserError(f"{run.where} {CANNOT}: {file} is damaged ({error})") from error
        if chain.states.get(step, found) != found:
            return f"the checkpoint of step {step:,} is not the state that the run recorded there"
    return ""


def _pruned(run: RunFolder, reached: int, chain: Chain, share: float) -> str:
    every = plan_of(run).save_every
    keep = -(-plan_of(run).total_steps // every) if every else 1
    largest = max((each.stat().st_size for each in run.checkpoints.glob("*.safe*")), default=0)
    return (
        f"{100 * share:.3g} % of {run.where} {CANNOT}: checkpoints were removed, and only "
        f"{100 * reached / chain.last:.2g} % of its steps follow one that is left; use a smaller "
        f"--share, or --all to train everything again, or train with --keep {keep} "
        f"({keep * largest / 1e6:,.1f} MB)"
    )


def _unproven(run: RunFolder, share: float) -> str:
    """Return what a check did not prove."""
    if share >= 1 or is_entry(run):
        return "" if share >= 1 else "the steps after these were not trained again"
    every, starts = plan_of(run).save_every, len(starts_of(run))
    planned = max(1, plan_of(run).total_steps // every) if every else 1
    left = f"; pieces begin at checkpoints, and {starts - 1} of {planned} are left (--keep)"
    return "the other steps were not trained again" + left * (starts < planned)
