"""The places where workers can run: one line each, with what the rest of the program must know.

To add a place: write a module with `open_place(job, listen)` (see
`places.supervise.open_place`), add its line here and a row to the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from paceline.job import Place

PlaceName = Literal["auto", "local", "tf_config", "slurm", "kubernetes", "ray", "spark"]


@dataclass(frozen=True)
class PlaceKind:
    """What is special about a place."""

    module: str
    """Its `open_place(job, listen)` finds or starts workers. It is imported only when used."""
    one_machine: bool = False
    """All processes share this machine's cores, and the parent ends all of them."""
    platform_restarts: bool = False
    """A platform starts each task, shows its log, and restarts all tasks after a failure."""
    parameter_servers: bool = False
    """It can start parameter servers."""
    engine: Callable[[Place], str] = lambda place: "collective"
    """Chooses one of `paceline.engines.table`, if there are no parameter servers."""


PLACES = {
    "local": PlaceKind("paceline.places.local", one_machine=True, parameter_servers=True),
    "tf_config": PlaceKind(
        "paceline.places.tf_config", platform_restarts=True, parameter_servers=True
    ),
    "slurm": PlaceKind("paceline.places.slurm", platform_restarts=True, parameter_servers=True),
    "kubernetes": PlaceKind(
        "paceline.places.kubernetes", platform_restarts=True, parameter_servers=True
    ),
    "ray": PlaceKind(
        "paceline.places.ray", engine=lambda place: place.ray.exchange.replace("-", "_")
    ),
    "spark": PlaceKind("paceline.places.spark.place"),
}
