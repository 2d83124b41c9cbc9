"""Where runs are found: by path or name, all runs of a folder, remote runs."""

import atexit
import re
import shutil
import tempfile
from importlib import import_module
from pathlib import Path

from paceline.errors import UserError, did_you_mean
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import to_log
from paceline.storage.locations import is_remote


def all_runs(root: str | Path = "runs") -> list[RunFolder]:
    """Return every run under `root`, by name; of remote runs, copies without checkpoints."""
    if is_remote(root):
        copies = [watched_run(url) for url in _remote_runs(str(root))]
        for run in copies:
            run.refresh(checkpoints=False)
        return [run for run in copies if run.exists()]
    return [RunFolder(config.parent) for config in sorted(Path(root).glob("*/config.json"))]


def existing_run(
    path: str | Path, root: str | Path = "runs", checkpoints: bool = True
) -> RunFolder:
    """Return the run at `path`, or of that name under `root`, for commands that read one.

    A name is that of the folder, or of the recipe if it has one run; `last` is the newest run.
    For a remote run this is a copy as of now, which is removed when this process ends.
    """
    if str(path).startswith("zoo:"):
        return RunFolder(import_module("paceline.extras.zoo").zoo_folder(str(path)))
    if is_remote(path):
        run = watched_run(path)
        run.refresh(checkpoints)
        if run.exists():
            return run
        raise UserError(f"no run in {path}; give the URL of its folder, the one with config.json")
    for run in (RunFolder(path), RunFolder(Path(root) / path)):
        if run.exists():
            return run
    runs = {run.path.name: run for run in all_runs(root)}
    if path == "last" and runs:
        return max(runs.values(), key=lambda run: (run.path / "config.json").stat().st_mtime)
    names = [name for name in runs if re.fullmatch(f"{re.escape(str(path))}-[0-9a-f]{{8}}", name)]
    if len(names) == 1:
        return runs[names[0]]
    if names:
        raise UserError(f"there are {len(names)} runs of {path}: {', '.join(names)}; give one name")
    names = list(runs)
    none = f"there are no runs in {root}; `paceline train` makes one"
    raise UserError(f"no run in {path}; {did_you_mean(Path(path).name, names) if names else none}")


def watched_run(path: str | Path) -> RunFolder:
    """Return a run that others train, for `refresh`; it need not exist yet."""
    if not is_remote(path):
        return RunFolder(path)
    # a folder of this process, apart from the local side of a training on this machine
    folder = Path(tempfile.mkdtemp(prefix="paceline-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return RunFolder(path, folder)


def _remote_runs(root: str) -> list[str]:
    """Return the URL of each run folder in a remote folder."""
    from paceline.storage.lease import LEASE
    from paceline.storage.remote import open_to_write, retry_storage

    files = [name.split("/") for name in retry_storage(open_to_write(root).files, to_log)]
    names = {parts[0] for parts in files if len(parts) == 2 and parts[1] == LEASE}
    return [f"{root.rstrip('/')}/{name}" for name in sorted(names)]
