"""`paceline report`: one self-contained page about one or several runs, without TensorFlow.

`run_data` reads run folders; `sections` and `charts` compute what the page shows.

The templates escape every value (autoescape); none of them marks a value as safe.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from paceline.errors import UserError
from paceline.extras.report import charts, sections
from paceline.extras.report.run_data import RunData, read_run
from paceline.run_folder.finding import existing_run
from paceline.storage.files import explained, replacing


def write_report(names: Sequence[str], out: Path, force: bool = False) -> list[str]:
    """Write the page; return a line for each run that could not be read and is left out."""
    if out.exists() and (not force or out.is_dir()):
        kind = " and is a folder" if out.is_dir() else ""
        raise UserError(
            f"{out} exists{kind}; pass --force to replace it, or use another name with -o"
        )
    runs, left_out = list[RunData](), list[str]()
    for name in dict.fromkeys(names):
        try:
            runs.append(read_run(existing_run(name)))
        except UserError as error:
            left_out.append(str(error) if name in str(error) else f"{name}: {error}")
    if not runs:
        raise UserError("; ".join(left_out))
    page = render_page(runs, left_out)
    with explained("write", out), replacing(out) as file:
        file.write(page.encode(errors="backslashreplace"))
    return left_out


def render_page(runs: Sequence[RunData], left_out: Sequence[str] = ()) -> str:
    """Return the whole page; `left_out` are the reasons why other runs are not in it."""
    count = len(runs)
    named = [(sections.letter(i, count), run) for i, run in enumerate(runs)]
    return get_template("page.html").render(
        kicker="Paceline report",
        title=runs[0].name if count == 1 else f"{count} runs",
        subtitle=datetime.date.today().isoformat(),
        left_out=[f"Left out: {reason}" for reason in left_out],
        single=count == 1,
        runs=named,
        run_notes=[f"{name}: {note}" for name, run in named for note in run.notes],
        same_bits=sections.same_bits(runs),
        learning_charts=sections.learning_charts(runs),
        rate_charts=sections.rate_charts(runs),
        event_notes=sections.event_notes(runs),
        settings=sections.side_by_side([run.settings for run in runs]),
        different_settings=sections.different_settings(runs),
        machine_facts=sections.machine_facts(runs),
        build_confusion=sections.Confusion,
    )


def render_fragment(run: RunData) -> str:
    """Return a run's outcome and curves, for notebooks."""
    drawn = sections.learning_charts([run])
    return get_template("fragment.html").render(run=run, learning_charts=drawn)


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
    environment.filters |= {function.__name__: function for function in sections.FILTERS}
    return environment.get_template(name)
