"""The page of a search: its trials, the metric over each setting, and curves."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from paceline.extras.report.charts import Chart, Drawing, Line
from paceline.extras.report.formats import number, whole_percent
from paceline.extras.report.report_page import get_template
from paceline.extras.search.options import SearchPlan
from paceline.extras.search.space import Range, describe
from paceline.extras.search.trials import TrialSummary, best_of

NUM_LINES = 8
"""Trials whose curves are drawn, the best ones."""


def render_search(plan: SearchPlan, trials: Sequence[TrialSummary]) -> str:
    """Return the whole page; trials are sorted, the best first."""
    over = ", ".join(describe(plan.space))
    counts = [sum(each.state == state for each in trials) for state in ("finished", "stopped")]
    lines = [
        f"{len(trials)} trials over {over}: {counts[0]} finished, {counts[1]} stopped early.",
        *(f"Trial {each.number} failed: {each.note}" for each in trials if each.note),
    ]
    return get_template("search.html").render(
        kicker="Paceline search",
        title=plan.where.rpartition("/")[2],
        subtitle=f"{plan.recipe} · {datetime.date.today().isoformat()}",
        metric=plan.options.metric,
        best=best_of(trials),
        trials=trials,
        names=list(plan.space),
        shown_names=[name.replace("_", "-") for name in plan.space],
        num_lines=NUM_LINES,
        lines=lines,
        setting_charts=_setting_charts(plan, trials),
        learning_charts=_learning_charts(trials),
    )


def _setting_charts(plan: SearchPlan, trials: Sequence[TrialSummary]) -> list[Drawing]:
    """Draw the metric of all trials over each setting that is a number."""
    metric = plan.options.metric
    show, most = (whole_percent, 1.0) if metric == "accuracy" else (number, float("inf"))
    charts = []
    for name, values in plan.space.items():
        known = [
            trial
            for trial in trials
            if _is_number(trial.settings[name]) and getattr(trial, metric) is not None
        ]
        lines = [
            Line("", [(trial.settings[name], getattr(trial, metric))], trial.state != "finished")
            for trial in known
        ]
        title = name.replace("_", "-")
        log_x = isinstance(values, Range) and values.log
        if lines:
            full_title = f"{metric.capitalize()} by {title}"
            charts.append(Chart(full_title, lines, title, show, log_x=log_x, most=most))
    return [Drawing(chart) for chart in charts]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _learning_charts(trials: Sequence[TrialSummary]) -> list[Drawing]:
    """Draw the evaluations of the best trials."""

    def lines(metric: str) -> list[Line]:
        return [
            Line(
                str(trial.number),
                [(each.epoch, getattr(each, metric)) for each in trial.evaluations],
                style,
                marked=True,
            )
            for style, trial in enumerate(trials[:NUM_LINES])
        ]

    charts = (
        Chart("Accuracy, validation", lines("accuracy"), "epoch", whole_percent, most=1.0),
        Chart("Loss, validation", lines("loss"), "epoch", number, log=True),
    )
    return [Drawing(chart) for chart in charts]
