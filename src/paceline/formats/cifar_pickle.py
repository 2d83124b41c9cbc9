"""Reads the pickles of CIFAR without running anything that they name.

A pickle may name any function, and NumPy's own functions read raw bytes as pointers. Here names
stand for substitutes only, and only the instructions of CIFAR's files are allowed. `_Unpickler` is
Python's unpickler that is written in Python: the one in C allocates gigabytes for a few bytes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

_ALLOWED = (
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE"),
)


class BadPickle(ValueError):
    """The pickle is damaged, or asks for something that is refused."""


class _Bytes:
    """Stands for `numpy.dtype`; it must be uint8."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        if code not in ("u1", b"u1"):
            raise BadPickle("its array is not of the type uint8")


class _Array:
    """Stands for a NumPy array. `BUILD` gives it its content."""

    content: npt.NDArray[np.uint8] | None = None

    def __init__(self, *_: Any) -> None: ...

    def set_state(self, state: Any) -> None:
        match state:
            case (_, (int() as rows, int() as columns), _Bytes(), False | 0, bytes() as raw):
                if min(rows, columns) < 0 or rows * columns != len(raw):
                    raise BadPickle("its array has a shape that its bytes do not fit")
                self.content = np.frombuffer(raw, np.uint8).reshape(rows, columns)
            case _:
                raise BadPickle("its array has a state that is refused")


def _encode(text: str, *_: Any) -> bytes:
    return text.encode("latin-1")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,  # the older name of numpy._core
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Bytes,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",
}


def _code(name: str) -> int:
    code: bytes = getattr(pickle, name)
    return code[0]


_METHODS: dict[int, Callable[..., None]] = pickle._Unpickler.dispatch
"""The methods of Python's unpickler by instruction."""


class _Unpickler(pickle._Unpickler):
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise BadPickle(f"it asks for {module}.{name}, which is refused"[:150])
        return _STAND_INS[module, name]

    def load_build(self) -> None:
        state, value = self.stack.pop(), self.stack[-1]
        if isinstance(value, _Array):
            value.set_state(state)
        elif not isinstance(value, _Bytes):
            raise BadPickle("it sets a state that is refused")

    def load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        _METHODS[_code("SETITEM")](self)

    def load_setitems(self) -> None:
        self._check_keys(self.stack[::2])
        _METHODS[_code("SETITEMS")](self)

    def _check_keys(self, keys: list[Any]) -> None:
        # Python would hash any key, and the hash of a deeply nested tuple ends the process.
        if not all(isinstance(key, str | bytes) for key in keys):
            raise BadPickle("its dictionary has keys that are not text")

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        **{_code(name): _METHODS[_code(name)] for name in _ALLOWED},
        _code("BUILD"): load_build,
        _code("SETITEM"): load_setitem,
        _code("SETITEMS"): load_setitems,
    }


def read_pickle(content: bytes) -> dict[Any, Any]:
    """Return the dictionary in a pickle; strings of Python 2 become bytes. Raises BadPickle."""
    file = io.BytesIO(content)
    try:
        found = _Unpickler(file, encoding="bytes").load()
    except BadPickle:
        raise
    except Exception as error:  # damage can raise anything
        read = f"(read up to offset {file.tell()} of {len(content)})"
        reason = (str(error).splitlines() or [""])[0][:100]
        kind = type(error).__name__
        raise BadPickle(f"it is cut short or damaged: {kind} {reason} {read}") from None
    if not isinstance(found, dict):
        raise BadPickle(f"it has a {type(found).__name__}, not a dictionary")
    return {
        key: value.content if isinstance(value, _Array) else value for key, value in found.items()
    }
