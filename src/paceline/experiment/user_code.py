"""Users' own functions, named as package.module:function or file.py:function: find and import them.

What they take and return is checked where they are used: data, models, actions. A name may begin
with FOLDER::, which is then where it is looked for (a run folder's copy of the code).
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from paceline.errors import UserError, did_you_mean

HOME = "::"
"""Between the folder to look in and the name."""
SAVED_MODEL = ".keras"
"""How the name of a saved Keras model ends. `model.build` can name one instead of a function."""


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
        _prefer(Path(home), source)
        source = str(Path(home, source)) if source.endswith(".py") else source
    _make_importable(Path.cwd())
    module = _import_file(source, spec) if source.endswith(".py") else _import_module(source, spec)
    if not hasattr(module, name):
        members = vars(module).items()
        known = [key for key, value in members if callable(value) and not key.startswith("_")]
        hint = did_you_mean(name, known) if known else "it defines none"
        raise UserError(f"{spec}: there is no function {name!r} in {source}; {hint}")
    function = getattr(module, name)
    if not callable(function):
        raise UserError(f"{spec}: {name!r} is a {type(function).__name__}, not a function")
    return cast("Callable[..., Any]", function)


def code_digest(spec: str) -> str:
    """Return the digest of the file with the function; comments and layout do not count.

    Empty if the function has no source in Python. Of a .keras file, its layers and weights count.
    """
    if spec.endswith(SAVED_MODEL):
        return saved_model_digest(Path(spec).expanduser())[:16]
    function = inspect.unwrap(load_function(spec))
    try:
        file = inspect.getsourcefile(function)
        text = Path(file).read_bytes() if file else b""
        tree = ast.dump(ast.parse(text))
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


def _import_module(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UserError(
                f"{spec}: there is no module {error.name!r} in {Path.cwd()} or among the installed "
                "packages"
            ) from error
        raise _failed(spec, error) from error
    except Exception as error:
        raise _failed(spec, error) from error


def _import_file(source: str, spec: str) -> ModuleType:
    """Import a file once per process, so that its classes keep their identity; its neighbors are
    importable too."""
    file = Path(source).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"{spec}: there is no file {file}")
    name = f"paceline_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    _make_importable(file.parent)
    found = importlib.util.spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _failed(spec, error) from error
    return module


def _failed(spec: str, error: Exception) -> UserError:
    source = traceback.extract_tb(error.__traceback__)[-1]
    reason = (str(error).splitlines() or [""])[0]
    where = f"{source.filename}:{source.lineno}"
    return UserError(f"{spec}: importing it failed: {type(error).__name__}: {reason} ({where})")


def _prefer(home: Path, source: str) -> None:
    """Import from this folder first; forget a module of another folder with the same name."""
    sys.path[:] = [str(home), *(folder for folder in sys.path if folder != str(home))]
    top = source.partition(".")[0]
    if source.endswith(".py") or not is_found(f"{home}{HOME}{source}:_"):
        return
    known = sys.modules.get(top)
    if known is not None and not (getattr(known, "__file__", None) or "").startswith(str(home)):
        for name in [name for name in sys.modules if name.partition(".")[0] == top]:
            del sys.modules[name]


def _make_importable(folder: Path) -> None:
    """Last on the path: a user's `data.py` must not hide a module of an installed package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
