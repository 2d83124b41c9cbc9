"""Runs a search from its start, or from where it was, to its table and page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec

from paceline.errors import UserError
from paceline.extras.search.options import SearchPlan
from paceline.extras.search.search_folder import SearchFolder
from paceline.extras.search.search_page import render_search
from paceline.extras.search.trials import TrialSummary, best_of, is_done, read_trials

NEEDED = ("ray", "pandas", "pyarrow", "requests")
"""What `ray[tune]` installs and Tune imports."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    trials: list[TrialSummary]
    """All trials, the best first: finished ones, then those that were stopped."""
    search_dir: str
    """The search folder, which contains a run folder for each trial."""
    page: str
    """The HTML page about the search."""
    crashed: list[str] = field(default_factory=list)
    """Trials that failed unexpectedly, and why. The same search tries them again."""

    @property
    def best(self) -> TrialSummary | None:
        """Return the best trial on the validation split; None if none was evaluated."""
        return best_of(self.trials)


def run_search(plan: SearchPlan, tell: Callable[[str], None]) -> SearchResult:
    """Train all trials that are not done, and write the page. `tell` gets lines of progress."""
    folder = SearchFolder(plan)
    with folder.opened():
        known = read_trials(plan, folder)
        done = {trial.run_dir for trial in known if is_done(trial, plan.options)}
        if done:
            tell(f"{len(done)} of {len(known)} trials in {plan.where} are done already")
        left = [trial for trial in plan.trials if trial.run_dir not in done]
        crashed: list[str] = []
        try:
            if left:
                check_ray()
                from paceline.extras.search.driver import run_trials

                crashed = run_trials(plan, left, folder, tell)
        finally:
            trials = read_trials(plan, folder)
            folder.write_page(render_search(plan, trials))
    return SearchResult(trials, plan.where, folder.page, crashed)


def check_ray() -> None:
    """Raise UserError if Ray Tune is not installed."""
    if missing := [name for name in NEEDED if not find_spec(name)]:
        raise UserError(
            f"a search needs Ray Tune, and {missing[0]} is not installed; install it with "
            "pip install 'paceline[search]'"
        )
