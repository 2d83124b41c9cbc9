"""Settings in a file: `paceline train my.toml` reads them, `--save-config my.json` writes them.

A file has the name of a `recipe` and any settings by the names of their flags, as TOML or JSON. A
run's config.json can be given, too. Flags win.
"""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.cli.parse import data_folder
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json, flatten, to_json
from paceline.experiment.names import from_recipe
from paceline.experiment.recipes.table import get_recipe
from paceline.run_folder.listing import train_command
from paceline.storage.files import explained


def load_parts(name: str, arguments: Sequence[str], *parts: Any) -> tuple[str, list[Any]]:
    """Return the name for runs of a recipe or a file, and its experiment and parts, for the folder
    in the arguments."""
    path, folder = Path(name), data_folder(arguments)
    if path.suffix not in (".toml", ".json"):
        return name, [get_recipe(name, folder), *parts]
    with explained("read", path):
        text = path.read_text()
    try:
        values: Json = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is not {path.suffix[1:].upper()}: {error}") from None
    if isinstance(values.get("experiment"), dict):  # config.json of a run
        return path.absolute().parent.name, [Experiment.from_json(values["experiment"]), *parts]
    values |= {"data.dir": folder} if folder else {}
    return path.stem, from_recipe(values.pop("recipe", "shapes"), values, *parts)


def save_settings(path: Path, recipe: str, *parts: Any) -> None:
    """Write what differs from a recipe, this one or the nearest, and from the usual parts."""
    recipe = train_command(parts[0], recipe)[1]
    changed: Json = {"recipe": recipe}
    usual = [get_recipe(recipe, parts[0].data.dir), *(type(part)() for part in parts[1:])]
    for old, new in zip(usual, parts, strict=True):
        before, after = flatten(to_json(old)), flatten(to_json(new))
        changed |= {name: after[name] for name in after if after[name] != before[name]}
    with explained("write", path):
        path.write_text(json.dumps(changed, indent=2) + "\n")
