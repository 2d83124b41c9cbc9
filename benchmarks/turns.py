"""An action for `paceline train --actions benchmarks.turns:take_turn`.

Training waits between two blocks until it may continue. The action reports each block through one
named pipe and waits on another; both are in the folder that FOLDER names.
"""

import json
import os
from pathlib import Path
from typing import Any

FOLDER = "PACELINE_BENCH_TURNS"
_last_step = 0


def take_turn(step: int, metrics: dict[str, Any]) -> None:
    global _last_step
    folder, steps, _last_step = Path(os.environ[FOLDER]), step - _last_step, step
    with open(folder / "done", "w") as pipe:
        pipe.write(json.dumps({"steps": steps, "images_per_s": metrics["images_per_second"]}))
    with open(folder / "go") as pipe:
        pipe.read()
