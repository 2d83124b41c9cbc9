"""Tables on a terminal: aligned columns without lines."""

from collections.abc import Iterable, Sequence

from paceline.errors import printable

LEFT = "<"
"""At the end of a heading: its column is aligned to the left, as the first one always is."""


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], whole: bool = False
) -> None:
    """Print rows of texts below their headings. With `whole`, no name is cut: lines may be longer
    than the width of the terminal."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    console, table = Console(), Table(box=None, padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        left = number == 0 or heading.endswith(LEFT)
        # Text, because names can look like rich's markup: [red]
        name = Text(printable(heading.removesuffix(LEFT)))
        table.add_column(name, justify="left" if left else "right")
    for row in rows:
        table.add_row(*(Text(printable(each)) for each in row))
    if whole:
        wide = console.options.update(width=10_000)
        console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table, soft_wrap=whole)


def shown(value: float | None, form: str) -> str:
    """Return a number as text; a dash if there is none."""
    return "-" if value is None else format(value, form)
