"""Results that show themselves as a table: text, HTML in a notebook, or a DataFrame of pandas."""

from datetime import datetime
from html import escape
from typing import Any

from paceline.errors import UserError, printable

MOST = 30
"""Rows that are shown. A DataFrame has all."""


class ShownAsTable:
    """A class that shows `rows`, all with the same names, below its `caption`."""

    def caption(self) -> str:
        """Return the line above the table."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, object]]:
        """Return the values of each row by the names of the columns."""
        raise NotImplementedError

    def dataframe(self) -> Any:
        """Return the rows as a pandas.DataFrame."""
        try:
            import pandas
        except ImportError:
            raise UserError("dataframe() needs the package pandas: pip install pandas") from None
        return pandas.DataFrame(self.rows())

    def _texts(self) -> list[list[str]]:
        rows = self.rows()
        shown = [[printable(_text(value)) for value in row.values()] for row in rows[:MOST]]
        more = [["...", *[""] * (len(rows[0]) - 1)]] if len(rows) > MOST else []
        return [[*row] for row in rows[:1]] + shown + more

    def __repr__(self) -> str:
        texts = self._texts()
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in texts)
        return "\n".join([printable(self.caption()), *lines])

    def _repr_html_(self) -> str:
        rows = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in self._texts())
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{escape(self.caption())}</p><table>{table}</table>"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return "-" if value is None else str(value)
