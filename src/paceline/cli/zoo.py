"""`paceline zoo`: the trained models that come with Paceline."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.cli.tables import print_table, shown


@dataclass(frozen=True)
class ListZoo:
    """List the trained models available as zoo:NAME: paceline zoo

    Example: paceline zoo
    """

    def __call__(self) -> int:
        from paceline.extras.zoo import list_zoo

        headings = ("name", "steps", "accuracy", "digest<", "command<")
        rows = []
        for row in list_zoo():
            accuracy, digest = shown(row.test_accuracy, ".4f"), row.state_sha256[:16]
            rows.append((row.name, f"{row.step:,}", accuracy, digest, row.command))
        print_table(headings, rows, whole=True)
        return 0
