"""Renders the page about one or several runs, and the part of it that a notebook shows.

The templates escape every value (autoescape); none of them marks a value as safe.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from paceline.results.report import charts, formats, sections
from paceline.results.report.confusion import build_confusion
from paceline.results.report.run_data import RunData

MAX_IMAGES, MAX_IMAGES_OF_SEVERAL = 24, 12
"""How many of a run's worst mistakes the page shows."""


def render_page(runs: Sequence[RunData], left_out: Sequence[str] = ()) -> str:
    """Return the whole page; `left_out` are the reasons why other runs are not in it."""
    count = len(runs)
    descriptions = list(dict.fromkeys(run.description for run in runs))
    shown = descriptions[:4] + ["…"] * (len(descriptions) > 4)
    named = [(formats.letter(i, count), run) for i, run in enumerate(runs)]
    most = MAX_IMAGES if count == 1 else MAX_IMAGES_OF_SEVERAL
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=runs[0].name if count == 1 else f"{count} runs",
            subtitle=" · ".join([*shown, datetime.date.today().isoformat()]),
            left_out=[f"Left out: {reason}" for reason in left_out],
            single=count == 1,
            runs=named,
            run_notes=[f"{name}: {note}" for name, run in named for note in run.notes],
            confusions=[build_confusion(run, most) for run in runs],
            same_bits=sections.same_bits(runs),
            learning_charts=sections.learning_charts(runs),
            rate_charts=sections.rate_charts(runs),
            start_notes=sections.start_notes(runs),
            settings=sections.all_settings(runs),
            different_settings=sections.different_settings(runs),
            machine_facts=sections.machine_facts(runs),
        )
    )


def render_fragment(run: RunData) -> str:
    """Return a run's outcome and curves, for notebooks."""
    template = _environment().get_template("fragment.html")
    return template.render(run=run, learning_charts=sections.learning_charts([run]))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("paceline.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        width=charts.WIDTH,
        height=charts.HEIGHT,
        left=charts.LEFT,
        bottom=charts.BOTTOM,
        style_of=charts.style_of,
        evaluation_rows=sections.evaluation_rows,
    )
    environment.filters.update(
        percent=formats.percent,
        number=formats.number,
        thousands=formats.thousands,
        px=formats.pixels,
        shorten=formats.shorten,
        duration=formats.duration,
        setting=formats.setting,
    )
    return environment
