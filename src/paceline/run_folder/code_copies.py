"""Copies of the user's own code in a run folder, so that the run can be used from any folder.

`code/NAME/` has the file of a function (NAME is model.build, data.build or actions), and the
modules and packages that it imports from the same folder. Other packages are not copied.
"""

import ast
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paceline.errors import UserError
from paceline.experiment.experiment import KERAS, Experiment
from paceline.experiment.user_code import HOME, SAVED_MODEL, is_found, spec_parts
from paceline.job import Job
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import explained, refuse_link

FOLDER = "code"


def locate(job: Job, name: str, spec: str) -> str:
    """Return where the code of a function is: here, or else copied in the run folder."""
    run = RunFolder(job.run.run_dir).path if job.run.run_dir else None
    if not run or not spec or is_found(spec) or not (copy := copied(run, name, spec)):
        return spec
    if not job.run.trust_code:
        raise UserError(
            f"{name} {spec} is not in {Path.cwd()}, but {run} has a copy of it; if you trust that "
            "code, pass --trust-code"
        )
    return copy


def keep_code(job: Job) -> None:
    """Copy the user's own functions into the run folder."""
    for name, spec in specs_of(job.experiment, job.run.actions):
        keep_copy(RunFolder(job.run.run_dir).path, name, locate(job, name, spec))


def specs_of(experiment: Experiment, actions: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return the name and the spec of each function of the user that a run has."""
    model = "" if experiment.model.build.startswith(KERAS) else experiment.model.build
    specs = [("model.build", model), ("data.build", experiment.data.build)]
    return [(name, spec) for name, spec in [*specs, *(("actions", s) for s in actions)] if spec]


def keep_copy(run: Path, name: str, spec: str) -> None:
    """Copy the files of a function or a saved model, unless they already are the run's copy."""
    run = run.resolve()
    target, base, files = run / FOLDER / name, Path.cwd(), set[Path]()
    if spec.endswith(SAVED_MODEL):
        file = Path(spec).expanduser().resolve()
        base, files = file.parent, {file}
    else:
        home, source, _ = spec_parts(spec)
        first = source.partition(".")[0]
        if source.endswith(".py"):
            file = Path(source).expanduser().resolve()
            base, first = file.parent, file.stem
        files = set() if home else _import_closure(base, first)
    for file in files if base != target else ():
        copy = target / file.relative_to(base)
        for each in (copy, *copy.parents)[: -len(run.parts)]:
            refuse_link(each)
        with explained("write", copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def copied(run: Path, name: str, spec: str) -> str:
    """Return the spec of the copy of a function or saved model; empty if the run has none."""
    home = (run / FOLDER / name).resolve()
    if spec.endswith(SAVED_MODEL):
        file = home / Path(spec).name
        return str(file) if file.is_file() else ""
    _, source, function = spec_parts(spec)
    inside = Path(source).name if source.endswith(".py") else source
    found = any(_files_of(home, inside.removesuffix(".py")))
    return f"{home}{HOME}{inside}:{function}" if found else ""


def with_copies(experiment: Experiment, run: Path) -> Experiment:
    """Return the experiment with the run's own copies of the code, where it has them."""
    copies = {name: copied(run, name, spec) for name, spec in specs_of(experiment)}
    model = copies.get("model.build") or experiment.model.build
    data = copies.get("data.build") or experiment.data.build
    return replace(
        experiment,
        model=replace(experiment.model, build=model),
        data=replace(experiment.data, build=data),
    )


def _import_closure(base: Path, name: str) -> set[Path]:
    """Return the files of a module or package, and of all that they import from the same folder."""
    files, todo = set[Path](), [name]
    while todo:
        for file in set(_files_of(base, todo.pop())) - files:
            files.add(file)
            with suppress(SyntaxError):  # such as a file for another version; it was not needed
                for node in ast.walk(ast.parse(file.read_bytes())):
                    if isinstance(node, ast.Import):
                        todo += [alias.name for alias in node.names]
                    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                        todo.append(node.module)
    return files


def _files_of(base: Path, module: str) -> Iterator[Path]:
    """Yield the file of a module, or all files of the package that it is in."""
    name = module.partition(".")[0]
    if (base / f"{name}.py").is_file():
        yield base / f"{name}.py"
    elif (base / name).is_dir():
        yield from (base / name).rglob("*.py")
