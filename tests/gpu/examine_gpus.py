"""What a person with one or more GPUs runs to check Paceline on them: `make test-gpu`.

Every training ends with a digest. Trainings of one group must have the same, whatever devices and
processes computed them. The report is gpu-report.md, to be sent back. `--cpu` runs the same
commands on the CPU, with small images, to check this script.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

SMOKE = "smoke --replicas 4"
WEIGHTS = f"{SMOKE} --devices gpu --sync.method weights --sync.every 3"
SPEED = "shapes --steps 40 --evaluate-every 0 --save-every 0 --model.layout imagenet"
SPEED += " --model.depth 50 --data.image-size 224 --data.train-size 4096 --data.test-size 128"
SPEED += " --devices gpu"
TIMEOUT_S = 600


class Check(NamedTuple):
    group: str
    """Trainings with the same name must end with the same digest; empty: only the speed counts."""
    what: str
    flags: str


def checks(gpus: int) -> Iterator[Check]:
    """Yield the trainings for a machine with this many GPUs."""
    yield Check("smoke", "4 replicas in turns on one GPU", f"{SMOKE} --devices gpu --cuda 1")
    yield Check("smoke", "the same again", f"{SMOKE} --devices gpu --cuda 1")
    yield Check("smoke", "stopped at step 9", f"{SMOKE} --devices gpu --stop-at 9")
    yield Check("smoke", "continued after step 9", f"{SMOKE} --devices gpu")
    for n in (n for n in (2, 4) if n <= gpus):
        yield Check("smoke", f"{n} GPUs of one process", f"{SMOKE} --devices gpu --cuda {n}")
        yield Check("smoke", f"{n} processes", f"{SMOKE} --devices gpu --cuda {n} --workers {n}")
        yield Check("weights", f"averaged weights, {n} GPUs", f"{WEIGHTS} --cuda {n}")
        if find_spec("ray"):
            on_ray = f"--on ray --workers {n}"
            yield Check("smoke", f"{n} actors of Ray", f"{SMOKE} --devices gpu --cuda {n} {on_ray}")
    yield Check("weights", "averaged weights, one GPU", f"{WEIGHTS} --cuda 1")
    yield Check("smoke", "a parameter server", f"{SMOKE} --devices gpu --workers 1 --ps 1")
    yield Check("half", "float16", f"{SMOKE} --devices gpu --precision float16")
    yield Check("half", "float16 again", f"{SMOKE} --devices gpu --precision float16")
    for n in (n for n in (1, 2, 4) if n <= gpus):
        flags = f"{SPEED} --replicas {n} --global-batch-size {32 * n} --cuda {n}"
        yield Check("", f"ResNet-50, GPUs: {n}", flags)


class Outcome(NamedTuple):
    check: Check
    code: int
    seconds: float
    result: dict[str, object]
    last_words: str


def run(check: Check, folder: Path, on_cpu: bool) -> Outcome:
    """Run a training in a process of its own."""
    words = check.flags.split()
    visible = None
    if "--cuda" in words:  # how many GPUs it may see
        at = words.index("--cuda")
        visible = ",".join(map(str, range(int(words[at + 1]))))
        del words[at : at + 2]
    if on_cpu:
        words = [{"gpu": "cpu", "224": "32", "40": "4"}.get(word, word) for word in words]
        check = check._replace(flags=" ".join(words))
    name = "stopped" if "step 9" in check.what else f"run-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "paceline", "train", *words, "--run-dir", str(folder / name)]
    environment = dict(os.environ, **({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "--json"], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return Outcome(check, -1, TIMEOUT_S, {}, f"not finished after {TIMEOUT_S} s")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result = json.loads(lines[-1]) if lines else {}
    words_at_end = " ".join((done.stderr or done.stdout).splitlines()[-3:])
    return Outcome(check, done.returncode, time.monotonic() - began, result, words_at_end)


def problems(outcomes: list[Outcome]) -> list[str]:
    """Return what is wrong: commands that failed, and groups with several digests."""
    found = [f"{o.check.what}: exit code {o.code}: {o.last_words}" for o in outcomes if o.code]
    for group in dict.fromkeys(o.check.group for o in outcomes if o.check.group):
        own = [o for o in outcomes if o.check.group == group and o.result.get("finished")]
        digests = {str(o.result["state_sha256"])[:16] for o in own}
        if len(digests) > 1:
            found.append(f"{group}: {len(digests)} digests: {', '.join(sorted(digests))}")
    return found


def report(outcomes: list[Outcome], machine: str) -> str:
    """Return the report as Markdown."""
    rows = [
        f"| {o.check.what} | `{o.check.flags}` | {o.code} | {o.seconds:.0f} | "
        f"{o.result.get('images_per_second')} | {str(o.result.get('state_sha256'))[:16]} |"
        for o in outcomes
    ]
    head = (
        "| training | flags | exit code | seconds | images/s | digest |\n|---|---|---|---|---|---|"
    )
    wrong = "\n".join(f"- {each}" for each in problems(outcomes)) or "none"
    table = "\n".join([head, *rows])
    return f"# Paceline on GPUs\n\n```\n{machine}\n```\n\n{table}\n\nProblems:\n\n{wrong}\n"


def machine() -> str:
    """Return the GPUs, the driver and the versions."""
    commands = ["nvidia-smi"], [sys.executable, "-m", "paceline", "doctor"]
    parts = []
    for command in commands:
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True)
            parts.append((done.stdout or done.stderr).strip())
    return "\n\n".join(parts)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gpus", type=int, default=0, help="number of GPUs; default: all")
    arguments.add_argument("--cpu", action="store_true", help="check this script without a GPU")
    given = arguments.parse_args()
    listed = ["nvidia-smi", "--list-gpus"] if shutil.which("nvidia-smi") else ["true"]
    found = len(subprocess.run(listed, capture_output=True, text=True).stdout.splitlines())
    gpus = given.gpus or found
    if not gpus:
        print("nvidia-smi lists no GPU; --gpus N --cpu checks this script without one")
        return 2
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for check in checks(gpus):
            outcomes.append(run(check, Path(folder), given.cpu))
            print(f"{outcomes[-1].seconds:6.0f} s  exit code {outcomes[-1].code}  {check.what}")
    Path("gpu-report.md").write_text(report(outcomes, machine()))
    print(*problems(outcomes) or ["no problem found"], "the report is gpu-report.md", sep="\n")
    return int(bool(problems(outcomes)))


if __name__ == "__main__":
    sys.exit(main())
