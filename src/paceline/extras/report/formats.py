"""Values as the text of the page. The templates use these functions as filters."""

from __future__ import annotations

from typing import Any

MISSING = "–"


def letter(index: int, count: int) -> str:
    """Return the short name of a run among several: A, B ... Z, A2 ...; a single run has none."""
    if count == 1:
        return ""
    return chr(65 + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def percent(value: float | None, digits: int = 2) -> str:
    return MISSING if value is None else f"{100 * value:.{digits}f} %"


def whole_percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def thousands(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


def pixels(value: float) -> str:
    return f"{value:.1f}"


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def duration(minutes: float) -> str:
    seconds = round(60 * minutes)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds // 60 % 60} min"


def setting(value: Any) -> str:
    """Return the value of a setting as people write it."""
    if isinstance(value, list):
        return ", ".join(setting(each) for each in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return MISSING if value in ("", None) else str(value)


FILTERS = (percent, number, thousands, pixels, shorten, duration, setting)
