"""Pages of the site that are not files of docs/: those at the root of the repository, the
notebooks, and the references of the command line and of Python. mkdocs.yml names this file; `make
docs` runs it.

Links are written for a plain git host. Here they become those of the site.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from command_line import command_line_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
NOTEBOOKS = "examples/notebooks"
AT_ROOT = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "docs/site/api.md": "api.md",
}
"""File of the repository -> page."""
ALONE = ("index.md",)
"""Pages without others beside them in the table of contents."""
WIDE = ("results.md",)
"""Pages whose tables need the whole width."""
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"<code>[^<]*</code>")
FLAG = re.compile(r"(?<=[ >])(--?[a-z][\w.-]{0,30})(?=[ <=])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of docs/ that the table of contents does not name into "How to", and link to
    the repository if pyproject.toml has its address."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    address = os.environ.get("PACELINE_REPOSITORY") or project["tool"]["paceline"]["repository"]
    config.repo_url = None if address == "URL" else address
    named = json.dumps(config.nav)
    new = [each.name for each in sorted(ROOT.glob("docs/*.md")) if f'"{each.name}"' not in named]
    (how_to,) = (part["How to"] for part in config.nav if "How to" in part)
    how_to += new
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    pages = {uri: (ROOT / name).read_text() for name, uri in AT_ROOT.items()}
    for path in ROOT.glob(f"{NOTEBOOKS}/*.ipynb"):
        pages[f"notebooks/{path.stem}.md"] = notebook_page(path)
    pages["cli.md"] = command_line_page()
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **others: Any) -> str:
    """Replace each link to a file of the repository by one to its page."""
    uri = page.file.src_uri
    if uri in ALONE:
        page.meta["hide"] = ["navigation"]
    if uri in WIDE:
        page.meta["hide"] = ["navigation", "toc"]
    here = os.path.dirname(source_of(uri))

    def rewritten(link: re.Match[str]) -> str:
        text, target, anchor = (part or "" for part in link.groups())
        there = page_of(os.path.normpath(os.path.join(here, target)))
        if ":" in target or not there:
            return link.group()
        if text in (target, os.path.basename(target)) and (file := files.get_file_from_path(there)):
            text = title_of(file)
        return f"[{text}]({os.path.relpath(there, os.path.dirname(uri) or '.')}{anchor})"

    return LINK.sub(rewritten, markdown)


def on_page_content(html: str, **others: Any) -> str:
    """Mark flags in the code of a text, so that no line breaks between their dashes."""
    return CODE.sub(lambda code: FLAG.sub(r'<span class="flag">\1</span>', code.group()), html)


def title_of(file: File) -> str:
    """Return the first heading of a page."""
    return file.content_string.split("\n", 1)[0].removeprefix("# ")


def source_of(uri: str) -> str:
    """Return the file of the repository that a page is made from."""
    if uri.startswith("notebooks/"):
        return f"{NOTEBOOKS}/{Path(uri).stem}.ipynb"
    return {page: name for name, page in AT_ROOT.items()}.get(uri, f"docs/{uri}")


def page_of(path: str) -> str:
    """Return the page of a file of the repository; nothing if it has none."""
    if path.startswith("docs/") and path not in AT_ROOT:
        return path.removeprefix("docs/")
    if path.startswith(NOTEBOOKS):
        return f"notebooks/{Path(path).stem}.md"
    return AT_ROOT.get(path, "")


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown, with its outputs, and a note on where it is."""
    cells = json.loads(path.read_text())["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
        else:
            parts += [f"```python\n{text}\n```", *map(shown, cell["outputs"])]
    parts.insert(1, f"This page is the notebook `{path.relative_to(ROOT)}`, as it ran.")
    return "\n\n".join(filter(None, parts))


def shown(output: dict[str, Any]) -> str:
    """Return an output of a cell: as HTML if it has that, else as text."""
    data = output.get("data", {})
    if "text/html" in data:
        html = re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))  # a blank line would end it
        return f'<div class="notebook-output">{html}</div>'
    text = "".join(output.get("text") or data.get("text/plain", ""))
    return f"```{{.text .notebook-output}}\n{text.strip()}\n```" if text.strip() else ""
