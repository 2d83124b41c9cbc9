"""Runs a search from its start, or from where it was, to its table and page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.extras.search.driver import run_trials
from paceline.extras.search.options import Search
from paceline.extras.search.search_folder import SearchFolder
from paceline.extras.search.search_page import render_search
from paceline.extras.search.trials import TrialSummary, best_of, read_trials


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    trials: list[TrialSummary]
    """All trials, the best first: finished ones, then those that were stopped."""
    search_dir: str
    """Folder of the search; it has a run folder for each trial."""
    page: str
    """The HTML page about the search."""
    crashed: list[str] = field(default_factory=list)
    """Trials that failed unexpectedly, and why. The same search tries them again."""

    @property
    def best(self) -> TrialSummary | None:
        """Return the best trial on the validation split; None if none was evaluated."""
        return best_of(self.trials)


def run_search(search: Search, tell: Callable[[str], None]) -> SearchResult:
    """Train all trials that are not done, and write the page. `tell` gets lines of progress."""
    folder = SearchFolder(search)
    with folder.opened():
        known = read_trials(search, folder)
        if done := [each for each in known if each.state in ("finished", "stopped", "failed")]:
            tell(f"{len(done)} of {len(known)} trials in {search.where} are done already")
        try:
            crashed = run_trials(search, folder, known, tell)
        finally:
            trials = read_trials(search, folder)
            folder.write_page(render_search(search, trials))
    return SearchResult(trials, search.where, folder.page, crashed)
