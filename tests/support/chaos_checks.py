"""What must hold after an attempt and after a round of `make chaos`.

python tests/support/chaos_checks.py RUN_DIR       # what is shown of a run, as JSON
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaos_scene import Scene
from helpers import Ended, losses_of
from paceline.run_folder.remote_run import PLAIN
from paceline.storage.lease import read_run_lease
from paceline.storage.remote import Store

KILLED = r"SIGKILL|exit code -9|code 137|lost|no answer|gone|died|ended without|Connection|connect"
STOPPED = r"stopped or starved|makes no progress|no sign of life|no answer|lost|gone|died"
KILLED_CODES = (-9, 137)
"""Of a command that was killed; srun reports a task's end as 128 and the signal."""
CAUSES = {
    "kill": KILLED,
    "terminate": rf"SIGTERM|exit code 143|{KILLED}",
    "stop": STOPPED,
    "storage refuses": r"s3://|storage|sign of life|no progress",
    "storage fails": r"s3://|storage|sign of life|no progress",
    "storage is slow": r"s3://|storage|sign of life|no progress",
    "full disk": r"No space left|disk is full|is full",
    "vanished data": r"-of-0000|records",
    "flipped bit": r"-of-0000|records",
    "cut link": rf"{STOPPED}|{KILLED}|s3://",
    "second command": r"another process|taken over",
    "pause": rf"{STOPPED}|{KILLED}",
}
"""What a message says if this fault ended a command."""


LIBRARIES = re.compile(
    r"ray$|__autograph_generated_file|__pycache__$|spark-|blockmgr-|hsperfdata_|liblz4|\.?hadoop"
)
"""Names of temporary files of Ray, TensorFlow, Spark and Java, which end with a signal."""


def check_attempt(ended: list[Ended], faults: list[dict[str, Any]], logs: bool = True) -> None:
    """Check how the commands of an attempt ended: in one line that names a fault that was there.

    Where workers have no `logs`, what they write stands before that line.
    """
    named, unnamed = False, list[str]()
    for each in ended:
        text = each.err.strip()
        line = (text.splitlines() or [""])[-1]
        if line.startswith("srun: "):  # its own words stand after those of the tasks
            line = "\n".join([*re.findall(r"^paceline: .*", text, re.MULTILINE)[-1:], line])
        if each.code in (0, *KILLED_CODES, -15, 143):
            continue
        assert each.code in (1, 2), f"exit code {each.code}: {text[-800:]}"
        shown = text if logs else line
        assert "Traceback" not in shown, f"a traceback: {text[-1500:]}"
        names = {fault["fault"] for fault in faults}
        assert names, f"it failed though nothing had happened: {line}"
        causes = "|".join(CAUSES[name] for name in names)
        if re.search(causes, line):
            named = True
        else:
            unnamed.append(text[-800:])
    for text in unnamed:  # a task that lost another one leaves the cause to it
        explained = named and "another worker is gone" in text.splitlines()[-1]
        assert explained, f"no cause that was there is named: {text}"


def check_round(scene: Scene, reference: dict[str, Any]) -> None:
    """Check what is shown of the run, and that nothing else is left of it."""
    shown = show(scene.run_dir, scene.folder / "reader")
    result, metrics = shown["result"], shown["metrics"]
    assert result["finished"], result
    assert result["state_sha256"] == reference["result"]["state_sha256"], (
        f"another digest: losses {shown['losses']} instead of {reference['losses']}"
    )
    steps = [record["step"] for record in metrics]
    assert steps == sorted(set(steps)), f"steps repeat: {steps}"
    assert steps[-1] == result["step"], steps
    assert evaluations(metrics) == evaluations(reference["metrics"]), evaluations(metrics)
    assert shown["losses"] == reference["losses"], f"steps in TensorBoard: {shown['losses']}"
    check_nothing_left(scene)


def check_temporary_files(scene: Scene, killed: bool) -> list[str]:
    """Check that only libraries left temporary files, or killed commands; return the names."""
    left = sorted(each.name for each in (scene.folder / "t").iterdir())
    own = [name for name in left if not LIBRARIES.match(name)]
    assert killed or not own, f"temporary files are left: {own}"
    return left


def check_objects(scene: Scene) -> None:
    """Check that storage has nothing that no reader needs, after an attempt without a fault."""
    if not scene.proxy:
        return
    store = Store(scene.run_dir)
    there = set(store.files()) - {"lease.json"}
    named = set(read_run_lease(store).files.values())
    stray = {key for key in there - named if not PLAIN.match(key)}
    assert not stray, f"objects are left: {sorted(stray)}"


def evaluations(metrics: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(each["step"], each["test_loss"]) for each in metrics if "test_loss" in each]


def check_nothing_left(scene: Scene) -> None:
    assert not scene.processes(), "processes are left"
    assert not (open_ports := listening() & scene.ports), f"ports are left: {open_ports}"
    if not scene.proxy:
        files = [str(path) for path in Path(scene.run_dir).rglob("*")]
        left = [name for name in files if re.search(r"\.tmp|/\.[^/]*$", name)]
        assert not left, f"files are left: {left}"


def show(run_dir: str, cache: Path) -> dict[str, Any]:
    """Return what is shown of a run."""
    own = {"PACELINE_CACHE": str(cache)}
    shown = subprocess.run(
        [sys.executable, __file__, run_dir], env=os.environ | own, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr[-1000:]
    return json.loads(shown.stdout.splitlines()[-1])


def listening() -> set[int]:
    """Return the ports at which somebody listens on this machine."""
    return {port for port, _ in _sockets()}


def ports_of(pids: list[int]) -> set[int]:
    """Return the ports at which processes listen."""
    inodes = set()
    for pid in pids:
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    return {port for port, inode in _sockets() if inode in inodes}


def _sockets() -> list[tuple[int, str]]:
    """Return port and inode of each listening socket."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                found.append((int(words[1].rpartition(":")[2], 16), words[9]))
    return found


def main(run_dir: str) -> None:
    from paceline.run_folder.finding import existing_run

    run = existing_run(run_dir, checkpoints=False)
    shown = {"result": run.read_result(), "metrics": run.metrics.read()}
    print(json.dumps(shown | {"losses": losses_of(run.path)}))


if __name__ == "__main__":
    main(sys.argv[1])
