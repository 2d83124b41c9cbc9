"""Copies of the user's own code in a run folder, so that the run can be used from any folder.

`code/NAME/` has the file of a function (NAME is model.build, data.build or actions) and those that
it imports from its own folder or the working directory. Installed packages are not copied.
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from paceline.errors import UserError
from paceline.experiment.experiment import KERAS, Experiment
from paceline.experiment.user_code import HOME, SAVED_MODEL, is_found, spec_parts
from paceline.job import Job
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import explained

FOLDER = "code"


def locate(job: Job, name: str, spec: str) -> str:
    """Return where the code of a function is: here, or copied in the run folder."""
    if not job.run.run_dir:
        return spec
    return here_or_copied(RunFolder(job.run.run_dir).path, name, spec, job.run.trust_code)


def keep_code(job: Job) -> None:
    """Copy the user's own functions into the run folder."""
    specs = specs_of(job.experiment, job.run.actions)
    run = RunFolder(job.run.run_dir)
    keep_copies(run.path, [(name, locate(job, name, spec)) for name, spec in specs])


def specs_of(experiment: Experiment, actions: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return the name and the spec of each function of the user that a run has."""
    model = "" if experiment.model.build.startswith(KERAS) else experiment.model.build
    specs = [("model.build", model), ("data.build", experiment.data.build)]
    return [(name, spec) for name, spec in [*specs, *(("actions", s) for s in actions)] if spec]


def keep_copies(run: Path, specs: Iterable[tuple[str, str]]) -> None:
    """Copy the functions' source files into the run folder unless they already come from it."""
    for name, spec in specs:
        for path, inside in _files_of(spec):
            target = (run / FOLDER / name / inside).resolve()
            if path == target:
                continue
            with explained("write", target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


def _files_of(spec: str) -> Iterator[tuple[Path, Path]]:
    """Yield the files of a function or a saved model, and their places in the copy."""
    if spec.endswith(SAVED_MODEL):
        file = Path(spec).expanduser().resolve()
        yield file, Path(file.name)
        return
    home, place, _ = spec_parts(spec)
    if home:  # a copy itself
        return
    is_file = place.endswith(".py")
    file = Path(place).expanduser().resolve()
    bases = [*([file.parent] if is_file else []), Path.cwd()]
    files = {file} if is_file else {path for path, _ in _imported(place, bases)}
    for path, base in _closure(files, bases):
        yield path, path.relative_to(base)


def copied(run: Path, name: str, spec: str) -> str:
    """Return the spec of the copy of a function or saved model; empty if the run has none."""
    home = (run / FOLDER / name).resolve()
    if spec.endswith(SAVED_MODEL):
        file = home / Path(spec).name
        return str(file) if file.is_file() else ""
    _, place, function = spec_parts(spec)
    inside = Path(place).name if place.endswith(".py") else place
    return f"{home}{HOME}{inside}:{function}" if _is_in(home, inside) else ""


def with_copies(experiment: Experiment, run: Path) -> Experiment:
    """Return the experiment with the run's own copies of the code, where it has them."""
    model, data = experiment.model, experiment.data
    if model.build and not model.build.startswith(KERAS):
        model = replace(model, build=copied(run, "model.build", model.build) or model.build)
    if data.build:
        data = replace(data, build=copied(run, "data.build", data.build) or data.build)
    return replace(experiment, model=model, data=data)


def here_or_copied(run: Path, name: str, spec: str, trust_code: bool) -> str:
    """Return the spec itself if its code is here, else that of the run's copy, if it is trusted."""
    if not spec or is_found(spec) or not (copy := copied(run, name, spec)):
        return spec
    if not trust_code:
        raise UserError(
            f"{name} {spec} is not in {Path.cwd()}, but {run} has a copy of it; if you trust that "
            "code, give --trust-code"
        )
    return copy


def _is_in(home: Path, inside: str) -> bool:
    if inside.endswith(".py"):
        return (home / inside).is_file()
    return any(True for _ in _imported(inside, [home]))


def _closure(files: Iterable[Path], bases: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the files and all that they import from the bases, each with its base."""
    todo = [(file, base) for file in sorted(files) for base in bases if file.is_relative_to(base)]
    seen: set[Path] = set()
    while todo:
        file, base = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        yield file, base
        for name, level in _imports(file):
            places = [file.parents[level - 1]] if level else bases
            for found, place in _imported(name, places):
                todo.append((found, base if level else place))


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """Yield what a file imports, anywhere in it: dotted names, and dots before them."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except SyntaxError:  # such as a file for another version; it was not needed
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            yield from ((prefix + alias.name, node.level) for alias in node.names)


def _imported(name: str, bases: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the files of a module and of the packages around it, in the first base that has it."""
    parts = name.split(".")
    for base in bases:
        found = []
        for count in range(1, len(parts) + 1):
            path = base.joinpath(*parts[:count])
            found += [p for p in (Path(f"{path}.py"), path / "__init__.py") if p.is_file()]
        own = [path for path in found if not _is_installed(path)]
        if own:
            yield from ((path, base) for path in own)
            return


def _is_installed(path: Path) -> bool:
    return "site-packages" in path.parts or path.is_relative_to(Path(sys.prefix))
