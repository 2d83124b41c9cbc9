"""Docstrings as Markdown for the API page: they are written for `help()`."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:[ ]+.*\n?|\n)+)", re.MULTILINE)


class Readable(griffe.Extension):
    """Show examples as code, and `<name>` as it is written."""

    def on_instance(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    text, *examples = EXAMPLE.split(text)
    text = re.sub(r"<(?=\w)", "&lt;", text)
    code = [f"```python\n{textwrap.dedent(each).strip()}\n```" for each in examples[:1]]
    return "\n\n".join([text.rstrip(), *code])
