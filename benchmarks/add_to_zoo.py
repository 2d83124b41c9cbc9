"""Makes an entry of the zoo from a finished run: python -m benchmarks.add_to_zoo RUN NAME OUT.

An entry has weights only: what evaluation takes, without the slots of the optimizer. The first
steps are trained again, to store their digest; that needs the data.
"""

import argparse
import math
import os
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks.model_card import write_card
from paceline.api.training import train
from paceline.errors import UserError
from paceline.experiment.experiment import MOVABLE, Experiment
from paceline.experiment.fields import Json
from paceline.extras.zoo import ADVICE, Row
from paceline.kernels.library import ARITHMETIC
from paceline.maths.state import Part, State, StateLayout, evaluated_vectors
from paceline.run_folder.checkpoint_file import ANY_RUN, WEIGHTS, Damaged, pack, read_variables
from paceline.run_folder.checkpoints import file_of
from paceline.run_folder.finding import existing_run
from paceline.storage.files import explained, read_json, replacing_path, sealed, write_json


def add_entry(row: Row, run: Path, folder: Path) -> Path:
    """Make an entry from a finished run in `folder`, and return its folder."""
    target = folder / row.name
    config = read_json(run / "config.json", ADVICE)
    experiment = Experiment.from_json(config["experiment"])
    if experiment.model.build or experiment.data.build:
        raise UserError(f"{run} has model.build or data.build; an entry of the zoo cannot")
    anywhere = replace(experiment, data=replace(experiment.data, dir=""))
    config |= {"experiment": anywhere.to_json(), "data_dir": ""}
    with explained("write", target), replacing_path(target) as entry:
        (entry / "checkpoints").mkdir(parents=True)
        write_json(entry / "config.json", sealed(config))
        shutil.copyfile(run / "result.json", entry / "result.json")
        write_weights(
            run / "checkpoints", entry / "checkpoints", row.step, anywhere.digest(MOVABLE)
        )
        write_json(entry / "zoo.json", sealed(asdict(row)))
        write_card(entry)
    return target


def write_weights(checkpoints: Path, folder: Path, step: int, experiment_digest: str) -> Path:
    """Write the weights of the checkpoint of `step` into a file of the same name in `folder`.

    They are the averaged ones if the training kept an average.
    """
    source_file, target = file_of(checkpoints, step), file_of(folder, step)
    try:
        tensors = read_variables(source_file, step, ANY_RUN)
    except (Damaged, OSError) as error:
        raise UserError(f"{source_file} cannot be read: {error}") from error
    evaluated = evaluated_vectors({each.partition("/")[0] for each in tensors})
    parts: dict[str, Part] = {}
    vectors: dict[str, np.ndarray] = {}
    for vector, source in zip(WEIGHTS, evaluated, strict=True):
        own = {
            each.removeprefix(f"{source}/"): array
            for each, array in tensors.items()
            if each.startswith(f"{source}/")
        }
        parts[vector] = tuple((each, array.shape) for each, array in own.items())
        flat = [array.reshape(math.prod(array.shape)) for array in own.values()]
        vectors[vector] = np.concatenate([*flat, np.zeros(0, np.float32)])
    content = pack(State(step, vectors), StateLayout(parts), experiment_digest, None)
    target.write_bytes(content)
    return target


def train_first(experiment: Experiment, kernels: str, stop_at: int, data_dir: str) -> Json:
    """Train an experiment up to a step, or with 0 to its end, in a temporary folder."""
    where = os.path.abspath(data_dir) if data_dir else experiment.data.dir
    with tempfile.TemporaryDirectory(prefix="paceline-zoo-") as folder:
        settings: Json = {"run_dir": f"{folder}/run", "stop_at": stop_at, "data.dir": where}
        settings["kernels"] = "own" if kernels == "own" else "tensorflow"
        return vars(train(experiment, **settings))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.add_to_zoo")
    parser.add_argument("run", help="folder of the run, or its name in runs/")
    parser.add_argument("name", help="name of the entry")
    parser.add_argument("out", help="folder of entries to add it to", type=Path)
    parser.add_argument("--command", help="command that made the run", required=True)
    parser.add_argument("--steps", help="steps after which the digest is stored", type=int)
    parser.add_argument("--data-dir", default="")
    parser.set_defaults(steps=20)
    given = parser.parse_args()
    run = existing_run(given.run)
    result = run.read_result() or {}
    steps, kernels = min(given.steps, result["step"]), run.kernels()
    first = train_first(run.experiment(), kernels, steps % result["step"], given.data_dir)
    row = Row(
        name=given.name,
        command=given.command,
        step=result["step"],
        test_accuracy=result["test_accuracy"],
        state_sha256=result["state_sha256"],
        first_steps=steps,
        first_sha256=first["state_sha256"],
        kernels=kernels,
        arithmetic=ARITHMETIC,
    )
    print(f"wrote {add_entry(row, run.path, given.out)}")


if __name__ == "__main__":
    main()
