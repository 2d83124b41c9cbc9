"""Runs a search from its start, or from where it was, to its table and page."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec

from paceline.errors import UserError
from paceline.extras.report.report_page import render_page
from paceline.extras.report.run_data import read_run
from paceline.extras.search.options import SearchPlan
from paceline.extras.search.trials import PAGE, SearchFolder, TrialSummary, is_done, read_trials
from paceline.run_folder.finding import existing_run

MOST_ON_PAGE = 16
"""How many of the best trials the page compares."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    trials: list[TrialSummary]
    """All trials, the best first: finished ones, then those that were stopped."""
    search_dir: str
    """The search folder, which contains a run folder for each trial."""
    page: str
    """The report of the best trials, an HTML page; it exists once one has been evaluated."""
    crashed: list[str] = field(default_factory=list)
    """Trials that failed unexpectedly, and why. The same search tries them again."""

    @property
    def best(self) -> TrialSummary | None:
        """Return the best trial on the validation split; None if none was evaluated."""
        return self.trials[0] if self.trials and self.trials[0].evaluations else None


def run_search(plan: SearchPlan, tell: Callable[[str], None]) -> SearchResult:
    """Train all trials that are not done, and write the page. `tell` gets lines of progress."""
    folder = SearchFolder(plan)
    with folder.opened():
        trials = read_trials(plan, folder)
        num_done = sum(is_done(trial, plan.options) for trial in trials)
        if num_done:
            tell(f"{num_done} of {len(trials)} trials in {plan.where} are done already")
        crashed: list[str] = []
        try:
            if num_done < len(trials):
                if not find_spec("ray"):
                    raise UserError("a search needs Ray: pip install 'paceline[ray]'")
                from paceline.extras.search.on_ray import run_trials

                crashed = run_trials(plan, trials, folder, tell)
        finally:
            trials = read_trials(plan, folder)
            shown = [each for each in trials if each.evaluations][:MOST_ON_PAGE]
            runs = [read_run(existing_run(each.run_dir, checkpoints=False)) for each in shown]
            if runs:
                folder.write(PAGE, render_page(runs))
    return SearchResult(trials, plan.where, f"{plan.where}/{PAGE}", crashed)
