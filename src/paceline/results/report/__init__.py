"""`paceline report`: one self-contained page about one or several runs. Imports no TensorFlow and asks no network.

`story` reads run folders, `charts` draws curves as SVG, `page` puts the page together, `style.css` says how it looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.errors import UserError
from paceline.results.report.page import build_page
from paceline.results.report.story import Story, read_story
from paceline.run_folder.folder import existing_run, explained, replacing


def write_report(names: Sequence[str], out: Path, force: bool = False) -> list[str]:
    """Write the page; answers a line for each run that could not be read and is left out."""
    if out.exists() and (not force or out.is_dir()):
        raise UserError(
            f"{out} exists{' and is a folder' * out.is_dir()}; give --force to replace it, or another name with -o"
        )
    stories, left_out = list[Story](), list[str]()
    for name in dict.fromkeys(names):
        try:
            stories.append(read_story(existing_run(name)))
        except UserError as error:
            left_out.append(str(error) if name in str(error) else f"{name}: {error}")
    if not stories:
        raise UserError("; ".join(left_out))
    page = build_page(stories, left_out)
    with explained("write", out), replacing(out) as file:
        file.write(page.encode())
    return left_out
