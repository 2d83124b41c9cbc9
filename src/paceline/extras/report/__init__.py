"""`paceline report`: one self-contained page about one or several runs, without TensorFlow.

`run_data` reads run folders, `sections`, `confusion` and `charts` compute what the page shows,
`formats` turns values into text, `report_page` renders the templates. A page needs no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.errors import UserError
from paceline.run_folder.finding import existing_run
from paceline.storage.files import explained, replacing


def write_report(names: Sequence[str], out: Path, force: bool = False) -> list[str]:
    """Write the page; return a line for each run that could not be read and is left out."""
    from paceline.extras.report.report_page import render_page
    from paceline.extras.report.run_data import RunData, read_run

    if out.exists() and (not force or out.is_dir()):
        kind = " and is a folder" if out.is_dir() else ""
        raise UserError(f"{out} exists{kind}; give --force to replace it, or another name with -o")
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
