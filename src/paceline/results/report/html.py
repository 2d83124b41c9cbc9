"""HTML as elements: text and attributes are escaped when they are written, so none can be forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, tostring

Content = Element | str | None


def element(tag: str, *content: Content | Iterable[Content], **attributes: object) -> Element:
    """An element with text, elements and lists of them; None is nothing. A trailing underscore frees a keyword: `class_`."""
    made = Element(
        tag, {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    )
    for item in content:
        for each in [item] if isinstance(item, str | Element) or item is None else item:
            _append(made, each)
    return made


def _append(parent: Element, item: Content) -> None:
    if isinstance(item, Element):
        parent.append(item)
    elif item and len(parent):
        parent[-1].tail = (parent[-1].tail or "") + item
    elif item:
        parent.text = (parent.text or "") + item


def to_text(root: Element) -> str:
    return tostring(root, "unicode", method="html")
