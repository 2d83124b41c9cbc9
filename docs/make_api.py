"""Write docs/api.md from the docstrings: `python docs/make_api.py`. With --check, only compare."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import paceline

PAGE = Path(__file__).with_name("api.md")
VERBS = ("train", "search", "evaluate", "predict", "export", "report", "runs", "recipes", "load")
MORE = ("load_predictor", "get_recipe")
CLASSES = ("Result", "SearchResult", "KerasCallbacks")
SETTINGS = ("Experiment", "Data", "Model", "Optimizer", "Schedule", "Sync", "EarlyStopping")
PLACES = ("Place", "Run")
HEAD = """# The Python API

`import paceline` loads no TensorFlow. The verbs do what the commands of the same name do, in worker
processes. This page is generated from the docstrings by `python docs/make_api.py`.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, "## Verbs", *map(function, (*VERBS, *MORE)), "## Classes", *map(kind, CLASSES)]
    parts += ["## Settings of an experiment", *map(kind, SETTINGS)]
    parts += ["## Settings of a place and a run", *map(kind, PLACES)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def function(name: str) -> str:
    """Describe a function: its signature and its docstring."""
    value = getattr(paceline, name)
    return f"### paceline.{name}\n\n```python\n{signature(name, value)}\n```\n\n{prose(value)}"


def signature(name: str, value: Any) -> str:
    """Return the call with its arguments, one per line if there are many."""
    parameters = inspect.signature(value).parameters.values()
    words = [re.sub(r": '([^']*)'", r": \1", str(each)) for each in parameters]
    kinds = [each.kind for each in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        words.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    line = f"{name}({', '.join(words)})"
    return line if len(line) < 100 else f"{name}(\n    " + ",\n    ".join(words) + ",\n)"


def prose(value: Any) -> str:
    """Return a docstring as Markdown: arguments as a list, examples as code."""
    text = inspect.getdoc(value) or ""
    intro, *sections = re.split(r"^(Args|Returns|Raises|Example):\n", text, flags=re.MULTILINE)
    parts = [intro.strip()]
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        body = textwrap.dedent(body).strip()
        if heading == "Example":
            parts.append(f"```python\n{body}\n```")
        elif heading in ("Args", "Raises"):
            parts += ["**Raises:**"] if heading == "Raises" else []
            parts.append("\n".join(f"- `{n}`: {t}" for n, t in arguments(body)))
        else:
            parts.append(f"**{heading}:** {' '.join(body.split())}")
    return "\n\n".join(parts)


def arguments(body: str) -> list[tuple[str, str]]:
    """Return each argument and its text."""
    found = re.findall(r"^(\S+): (.+(?:\n[ ].*)*)", body, flags=re.MULTILINE)
    return [(name, " ".join(text.split())) for name, text in found]


def kind(name: str) -> str:
    """Describe a class, and each field with its default."""
    value = getattr(paceline, name)
    parts = [f"### paceline.{name}", prose(value)]
    if dataclasses.is_dataclass(value):
        texts = field_texts(value)
        rows = [f"- {field_line(each, texts)}" for each in dataclasses.fields(value)]
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def field_line(field: dataclasses.Field[Any], texts: dict[str, str]) -> str:
    default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
    text = texts.get(field.name)
    return f"`{field.name}: {field.type}{default}`" + (f" {text}" if text else "")


def field_texts(value: type) -> dict[str, str]:
    """Return the docstring below each field."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            texts[ast.unparse(before.target)] = " ".join(ast.literal_eval(after.value).split())
    return texts


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() != page():
            sys.exit(f"{PAGE} is old; run: python docs/make_api.py")
    else:
        PAGE.write_text(page())
