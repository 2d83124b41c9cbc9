"""`paceline verify --follow`: an auditor that checks a share of a run while others train it."""

import random
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from paceline.errors import PassingFault, UserError
from paceline.extras.proof.differences import Chain, plan_of, read_chain
from paceline.extras.proof.replay import (
    CANNOT,
    How,
    Piece,
    check_can_replay,
    copy_start,
    first_difference,
)
from paceline.extras.proof.verify import Verdict, explain, starts_of
from paceline.messages import Send, Warn
from paceline.run_folder.finding import existing_run, watched_run
from paceline.run_folder.folder import RunFolder

POLL_S = 1.0
PATIENCE_S = 3600.0
"""Without a sign of the training for so long, the auditor ends."""


class Auditor:
    """Takes a copy of a share of the checkpoints before they are pruned, and trains on from it.

    `folder` holds the copies.
    """

    def __init__(self, run: RunFolder, share: float, how: How, seed: int, folder: Path) -> None:
        self._run, self._share, self._how, self._seed, self._folder = run, share, how, seed, folder
        self._seen = set[int]()
        self._waiting = list[int]()
        """Steps of the copies from which nothing was trained yet."""
        self.checked = 0

    def take_new(self) -> None:
        """Draw among the checkpoints that are new, at least one of all; copy those drawn."""
        plan, offset = plan_of(self._run), random.Random(self._seed).random()
        share = max(self._share, (plan.save_every or plan.total_steps) / plan.total_steps)
        for step in sorted({*starts_of(self._run)} - self._seen):
            begun = int(offset + share * len(self._seen))
            self._seen.add(step)
            if int(offset + share * len(self._seen)) > begun:
                with suppress(UserError):  # it was removed just now
                    copy_start(self._run, step, self._folder / str(step))
                    self._waiting.append(step)

    def next_piece(self, chain: Chain, is_finished: bool) -> Piece | None:
        """Return a piece that the run has trained and that can be checked now."""
        plan = plan_of(self._run)
        for step in self._waiting:
            far = step + self._share * plan.total_steps
            later = [end for end in sorted(chain.states) if end > step]
            ends = [end for end in later if plan.saves_at(end) or end >= far]
            if ends := ends or later[-1:] * is_finished:
                return Piece(step, ends[0])
        if is_finished:
            self._waiting.clear()  # nothing follows the last checkpoint
        return None

    def check(self, chain: Chain, piece: Piece, listen: Send) -> str:
        """Train a piece again; record and return what differs."""
        run, how, folder = self._run, self._how, self._folder / str(piece.start)
        difference = first_difference(run, chain, piece, how, folder, listen)
        finding = explain(run, piece, difference, how, folder, listen) if difference else ""
        self.checked += piece.steps
        self._waiting.remove(piece.start)
        shutil.rmtree(folder)
        record = {"step": piece.stop, "start": piece.start, "finding": finding, "time": time.time()}
        run.audits.append(record)
        run.publish_evaluations()
        return finding


def follow(path: str, share: float, how: How, seed: int, listen: Send) -> Verdict:
    """Check a share of a run until it is finished or a difference is found."""
    began = sign = time.monotonic()
    last, finding = 0, ""
    try:
        run = existing_run(path)
    except UserError as error:
        run = watched_run(path)
        listen(Warn(f"{error}; the auditor waits for it"))
    with tempfile.TemporaryDirectory(prefix="paceline-audit-") as folder:
        auditor = Auditor(run, share, how, seed, Path(folder))
        while time.monotonic() - sign < PATIENCE_S:
            try:
                run.refresh()
                is_finished = run.exists() and bool((run.read_result() or {}).get("finished"))
                chain = read_chain(run, whole=False) if run.exists() else None
            except PassingFault as error:
                listen(Warn(f"{error}; the auditor tries again"))
                chain = None
            if chain:
                check_can_replay(run, how)
                auditor.take_new()
                while not finding and (piece := auditor.next_piece(chain, is_finished)):
                    finding = auditor.check(chain, piece, listen)
                    auditor.take_new()
                    sign = time.monotonic()
                if finding or is_finished:
                    break
                if len(chain.signatures) != last:
                    last, sign = len(chain.signatures), time.monotonic()
            time.sleep(POLL_S)
        else:
            raise UserError(f"{run.where} {CANNOT}: its training has made no progress for an hour")
    whole = read_chain(run)
    finding, steps = finding or whole.fault, max(1, whole.last)
    if not (auditor.checked or finding):
        raise UserError(f"{run.where} {CANNOT}: no checkpoint was drawn; use a larger --share")
    note = "the other steps were not trained again" * (auditor.checked < steps)
    return Verdict(auditor.checked, steps, time.monotonic() - began, finding, note)
