"""The page of a search: its trials, how each setting and the metric go together, and curves."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from paceline.extras.report.charts import Chart, Drawing, Line
from paceline.extras.report.formats import number, whole_percent
from paceline.extras.report.report_page import get_template
from paceline.extras.search.options import Search
from paceline.extras.search.space import Choice, Range, describe
from paceline.extras.search.trials import TrialSummary, best_of

NUM_LINES = 8
"""Trials whose curves are drawn, the best ones."""
LOG_FROM = 5
"""A list of numbers is drawn on a logarithmic scale if the largest is that many times the least."""


def render_search(search: Search, trials: Sequence[TrialSummary]) -> str:
    """Return the whole page; trials are sorted, the best first."""
    over = ", ".join(describe(search.space))
    counts = [sum(each.state == state for each in trials) for state in ("finished", "stopped")]
    lines = [
        f"{len(trials)} trials over {over}: {counts[0]} finished, {counts[1]} stopped early.",
        *(f"Trial {each.number} failed: {each.note}" for each in trials if each.note),
    ]
    return get_template("search.html").render(
        kicker="Paceline search",
        title=search.where.rpartition("/")[2],
        subtitle=f"{search.recipe} · {datetime.date.today().isoformat()}",
        metric=search.options.metric,
        best=best_of(trials),
        trials=trials,
        names=list(search.space),
        shown_names=[name.replace("_", "-") for name in search.space],
        num_lines=NUM_LINES,
        lines=lines,
        setting_charts=_setting_charts(search, trials),
        learning_charts=_learning_charts(trials),
    )


def _setting_charts(search: Search, trials: Sequence[TrialSummary]) -> list[Drawing]:
    """Draw the metric of all trials over each setting that is a number."""
    metric = search.options.metric
    charts = []
    for name, each in search.space.items():
        known = [
            (float(trial.settings[name]), getattr(trial, metric), trial.state != "finished")
            for trial in trials
            if _is_number(trial.settings[name]) and getattr(trial, metric) is not None
        ]
        lines = [Line("", [(x, y)], int(ended_early)) for x, y, ended_early in known]
        title = name.replace("_", "-")
        show, most = (whole_percent, 1.0) if metric == "accuracy" else (number, float("inf"))
        chart = Chart(
            f"{metric.capitalize()} by {title}", lines, title, show, log_x=_log(each), most=most
        )
        if lines:
            charts.append(Drawing(chart))
    return charts


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _log(each: Range | Choice) -> bool:
    if isinstance(each, Range):
        return each.log
    numbers = [float(value) for value in each.values if _is_number(value)]
    return bool(numbers) and 0 < LOG_FROM * min(numbers) <= max(numbers)


def _learning_charts(trials: Sequence[TrialSummary]) -> list[Drawing]:
    """Draw the evaluations of the best trials."""
    best = list(enumerate(trials[:NUM_LINES]))
    accuracy = [
        Line(str(trial.number), [(e.epoch, e.accuracy) for e in trial.evaluations], style, True)
        for style, trial in best
    ]
    loss = [
        Line(str(trial.number), [(e.epoch, e.loss) for e in trial.evaluations], style, True)
        for style, trial in best
    ]
    charts = (
        Chart("Accuracy, validation", accuracy, "epoch", whole_percent, most=1.0),
        Chart("Loss, validation", loss, "epoch", number, log=True),
    )
    return [Drawing(chart) for chart in charts]
