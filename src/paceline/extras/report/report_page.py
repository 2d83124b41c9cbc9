"""Renders the page about one or several runs, and the part of it that a notebook shows.

The templates escape every value (autoescape); none of them marks a value as safe.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from paceline.extras.report import charts, formats, sections
from paceline.extras.report.confusion import Confusion
from paceline.extras.report.run_data import RunData


def render_page(runs: Sequence[RunData], left_out: Sequence[str] = ()) -> str:
    """Return the whole page; `left_out` are the reasons why other runs are not in it."""
    count = len(runs)
    descriptions = list(dict.fromkeys(run.description for run in runs))
    shown = descriptions[:4] + ["…"] * (len(descriptions) > 4)
    named = [(formats.letter(i, count), run) for i, run in enumerate(runs)]
    return get_template("page.html").render(
        kicker="Paceline report",
        title=runs[0].name if count == 1 else f"{count} runs",
        subtitle=" · ".join([*shown, datetime.date.today().isoformat()]),
        left_out=[f"Left out: {reason}" for reason in left_out],
        single=count == 1,
        runs=named,
        run_notes=[f"{name}: {note}" for name, run in named for note in run.notes],
        same_bits=sections.same_bits(runs),
        learning_charts=sections.learning_charts(runs),
        rate_charts=sections.rate_charts(runs),
        start_notes=sections.start_notes(runs),
        settings=sections.all_settings(runs),
        different_settings=sections.different_settings(runs),
        machine_facts=sections.machine_facts(runs),
        build_confusion=Confusion,
    )


def render_fragment(run: RunData) -> str:
    """Return a run's outcome and curves, for notebooks."""
    drawings = sections.learning_charts([run])
    return get_template("fragment.html").render(run=run, learning_charts=drawings)


def render_svg(drawing: charts.Drawing) -> str:
    """Return a chart as an SVG file, with its style inside."""
    return get_template("chart.svg").render(drawing=drawing)


def get_template(name: str) -> Template:
    """Return a template of the pages, with the functions that it uses."""
    environment = Environment(
        loader=PackageLoader("paceline.extras.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["charts"] = charts
    environment.filters |= {function.__name__: function for function in formats.FILTERS}
    return environment.get_template(name)
