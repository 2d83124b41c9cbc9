"""Functions and Keras models of a notebook or a script, as files that worker processes can read.

A function is shipped as source, with what it uses; a Keras model as a .keras file. Nothing is
pickled: a run can be read and resumed by another Python, and loading it runs no hidden code.
The files are in the cache, named by their content, so the same code gives the same experiment.
"""

import ast
import builtins
import hashlib
import inspect
import symtable
import sys
import tempfile
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from paceline.errors import UserError
from paceline.experiment.user_code import saved_model_digest
from paceline.storage.files import replacing
from paceline.storage.locations import cache_folder

PUT_IN_A_FILE = "put it into a file and give 'file.py:function'"


def ship_function(function: Callable[..., Any], what: str) -> str:
    """Return a function as file.py:function or package.module:function; `what` names it in errors.

    A function of an imported module is named where it is. One of a notebook or of the script that
    runs is written to a file, with the imports, constants and functions that it uses.
    """
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise UserError(
            f"{what} is {function!r}; it must be a function with a name (def), or "
            "'file.py:function'"
        )
    module, name = sys.modules.get(function.__module__), function.__name__
    if _is_importable(function, name) and module and module.__file__:
        return f"{module.__name__ if '.' in module.__name__ else module.__file__}:{name}"
    needs = {"": '"""A function of a notebook or a script, as paceline.train found it."""\n'}
    _add(needs, name, function, what)
    text = ("\n".join(needs.values()) + "\n").encode()
    return f"{_keep('code', f'{name}-{hashlib.sha256(text).hexdigest()[:12]}.py', text)}:{name}"


def ship_model(model: Any) -> str:
    """Save a Keras model and return its file."""
    import keras

    if not isinstance(model, keras.Model):
        raise UserError(
            f"model is a {type(model).__name__}; it must be a function, a keras.Model, a dict of "
            "settings, or 'file.py:function'"
        )
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "model.keras")
        model.save(file)
        name = f"{model.name}-{saved_model_digest(file)[:12]}.keras"
        return _keep("models", name, file.read_bytes())


def _keep(folder: str, name: str, content: bytes) -> str:
    path = cache_folder() / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with replacing(path) as file:
            file.write(content)
    return str(path)


def _is_importable(value: Any, name: str) -> bool:
    """Return whether another process finds this object under this name in its module."""
    module = sys.modules.get(getattr(value, "__module__", None) or "__main__")
    return module is not sys.modules["__main__"] and getattr(module, name, None) is value


def _add(needs: dict[str, str], name: str, value: Any, what: str) -> None:
    """Add the lines that define `name`, after those that they need."""
    own = getattr(value, "__name__", "")
    if name in needs:
        return
    if isinstance(value, ModuleType):
        needs[name] = f"import {own} as {name}"
    elif _is_importable(value, own):
        needs[name] = f"from {value.__module__} import {own} as {name}"
    elif isinstance(value, FunctionType):
        source = _source_of(value, what)
        known = {**value.__globals__, **inspect.getclosurevars(value).nonlocals}
        for used in sorted((_free_names(source) - {own}) & known.keys()):
            _add(needs, used, known[used], what)
        needs[name] = f"\n\n{source}" + (f"\n{name} = {own}" if name != own else "")
    else:
        needs[name] = f"{name} = {value!r}"
        with suppress(ValueError, SyntaxError, TypeError):
            if ast.literal_eval(repr(value)) == value:
                return
        raise UserError(
            f"{what} uses {name}, a {type(value).__name__}, which cannot be shipped as source; "
            f"make it inside the function, or {PUT_IN_A_FILE}"
        )


def _source_of(function: FunctionType, what: str) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError) as error:
        raise UserError(
            f"{what}: Python does not know the source of {function.__name__}; {PUT_IN_A_FILE}"
        ) from error


def _free_names(source: str) -> set[str]:
    """Return the names that the code takes from its surroundings."""
    found, tables = set[str](), [symtable.symtable(source, "source", "exec")]
    for table in tables:
        tables += table.get_children()
        outermost = table.get_type() == "module"
        used = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
        found |= {symbol.get_name() for symbol in used if outermost or symbol.is_global()}
    return found - set(dir(builtins))
