"""Nested dicts, as JSON has them: what differs between two of them, and all names at one level."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def diff(
    old: dict[str, Any], new: dict[str, Any], ignore: Collection[str] = (), prefix: str = ""
) -> list[str]:
    """Return lines `field: old -> new`, without the fields whose dotted name is in `ignore`."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        name, a, b = prefix + key, old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += diff(a, b, ignore, f"{name}.")
        elif a != b and name not in ignore:
            lines.append(f"{name}: {a!r} -> {b!r}")
    return lines


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one level, with names like those of flags: `schedule.rate`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = prefix + key
        flat |= flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
