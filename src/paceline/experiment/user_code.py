"""Users' own functions, named as package.module:function or file.py:function: find and import them.

What they take and return is checked where they are used: data, models, actions. A name may begin
with FOLDER::, which is then where it is looked for (a run folder's copy of the code).
"""

import ast
import hashlib
import importlib.util
import inspect
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import UserError, did_you_mean, first_line

HOME = "::"
"""Between the folder to look in and the name."""
SAVED_MODEL = ".keras"
"""How the name of a saved Keras model ends. `model.build` can name one instead of a function."""


def in_own_code(error: Exception) -> str:
    """Return type, first line and position of an error in code of the user's own."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {first_line(error)} ({last.filename}:{last.lineno})"


def spec_parts(spec: str) -> tuple[str, str, str]:
    """Return the folder to look in, which is often empty; the module or file; the function."""
    before, colon, name = spec.rpartition(":")
    home, _, source = before.rpartition(HOME)
    if not (colon and source and name):
        raise UserError(
            f"{spec!r} does not name a function; write package.module:function or file.py:function"
        )
    return home, source, name


def is_found(spec: str) -> bool:
    """Return whether there is a file or a module of that name; nothing of it is run."""
    if spec.endswith(SAVED_MODEL):
        return Path(spec).expanduser().is_file()
    home, source, _ = spec_parts(spec)
    if source.endswith(".py"):
        return Path(home, source).expanduser().is_file()
    _make_importable(Path(home) if home else Path.cwd())
    try:
        return importlib.util.find_spec(source.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def load_function(spec: str) -> Callable[..., Any]:
    """Return the function that `spec` names. The working directory is importable."""
    home, source, name = spec_parts(spec)
    if home:
        _prefer(home, source)
    _make_importable(Path.cwd())
    module = _import(home, source, spec)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        known = [key for key, own in vars(module).items() if callable(own) and key[0] != "_"]
        hint = did_you_mean(name, known) if known else "it defines none"
        raise UserError(f"{spec}: there is no function {name!r} in {source}; {hint}")
    return function


def _import(home: str, source: str, spec: str) -> ModuleType:
    file = Path(home, source).expanduser().resolve()
    if source.endswith(".py") and not file.is_file():
        raise UserError(f"{spec}: there is no file {file}")
    try:
        return _import_file(file) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{source}.".startswith(f"{missing}."):
            raise UserError(
                f"{spec}: there is no module {missing!r} in {Path.cwd()} or among the installed "
                "packages"
            ) from error
        raise UserError(f"{spec}: importing it failed: {in_own_code(error)}") from error


def _import_file(file: Path) -> ModuleType:
    """Import a file once per process, so that its classes keep their identity."""
    name = f"paceline_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        _make_importable(file.parent)
        found = importlib.util.spec_from_file_location(name, file)
        assert found is not None
        assert found.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(found)
        try:
            found.loader.exec_module(sys.modules[name])
        except Exception:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _prefer(home: str, source: str) -> None:
    """Import from this folder first; forget a module of another folder with the same name."""
    sys.path[:] = [home, *(folder for folder in sys.path if folder != home)]
    top = source.partition(".")[0]
    known = None if source.endswith(".py") else sys.modules.get(top)
    if known is not None and not (getattr(known, "__file__", None) or "").startswith(home):
        for name in [name for name in sys.modules if name.partition(".")[0] == top]:
            del sys.modules[name]


def _make_importable(folder: Path) -> None:
    """Last on the path: a user's `data.py` must not hide a module of an installed package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def code_digest(spec: str) -> str:
    """Return the digest of the file with the function; comments and layout do not count. Empty if
    the function has no source in Python. Of a .keras file, its layers and weights count."""
    if spec.endswith(SAVED_MODEL):
        return saved_model_digest(Path(spec).expanduser())[:16]
    try:
        file = inspect.getsourcefile(inspect.unwrap(load_function(spec)))
        tree = ast.dump(ast.parse(Path(file or "").read_bytes()))
    except (TypeError, OSError, SyntaxError):
        return ""
    return hashlib.sha256(tree.encode()).hexdigest()[:16]


def saved_model_digest(file: Path) -> str:
    """Return the digest of the layers and weights in a .keras file, not of when it was written."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(file) as archive:
            for name in ("config.json", "model.weights.h5"):
                digest.update(archive.read(name))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is not a .keras file that can be read: {error}") from error
    return digest.hexdigest()
