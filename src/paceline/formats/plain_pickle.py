"""Pickles of plain containers and NumPy arrays, read without running anything that they name.

Python's own unpickler calls constructors, and a few bytes make it allocate gigabytes or read raw
bytes as pointers. Here `pickletools` splits the pickle into its instructions, and this module
carries out those that build numbers, strings, lists, tuples and dictionaries. An array is rebuilt
from its shape, its type and its bytes, which must fit together. Memory is bounded by the file.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class BadPickle(ValueError):
    """The pickle is damaged, or asks for something that is refused."""


class _Global(NamedTuple):
    """A name that a pickle refers to. It is never imported."""

    module: str
    name: str


class _Array:
    """An array under construction: `content` is set by its state."""

    content: np.ndarray | None = None


class _Type:
    """The type of an array: kind and size, such as u1, and the order of its bytes."""

    def __init__(self, code: str) -> None:
        if not re.fullmatch("[iu][1248]|f[248]|b1", code, re.ASCII):
            raise BadPickle(f"its array has the type {code[:20]!r}, which is refused")
        self.code, self.order = code, "<"

    def build(self) -> np.dtype:
        return np.dtype(self.order + self.code)


_MARK = object()
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_BYTES = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_PYTHON_2_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING = {"PROTO", "FRAME", "STOP"}


def read_plain_pickle(content: bytes) -> Any:
    """Return what a pickle contains; strings of Python 2 become bytes. Raises BadPickle."""
    machine, place = _Machine(), 0
    try:
        for operation, argument, position in pickletools.genops(content):
            place = position or 0
            machine.do(operation.name, argument)
        value = machine.pop()
    except BadPickle as error:
        raise BadPickle(f"{error} (offset {place})") from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0][:100]
        raise BadPickle(
            f"it is cut short or damaged: {reason} (read up to offset {place} of {len(content)})"
        ) from None
    return _finished(value)


class _Machine:
    """The stack and the memo of a pickle that is carried out."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise BadPickle("its instructions do not fit together")
        return value

    def do(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _NUMBERS or name in _TEXTS:
            self._stack.append(argument)
        elif name in _BYTES:
            self._stack.append(bytes(argument))
        elif name in _PYTHON_2_STRINGS:
            self._stack.append(argument.encode("latin-1"))
        elif name in _TUPLES:
            values = [self.pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(values[::-1]))
        elif name not in _NOTHING:
            self._do_other(name, argument)

    def _do_other(self, name: str, argument: Any) -> None:
        match name:
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                self._stack.append(self._memo[argument])
            case "TUPLE" | "LIST":
                values = self._since_mark()
                self._stack.append(tuple(values) if name == "TUPLE" else values)
            case "DICT":
                self._stack.append(_pairs(self._since_mark()))
            case "APPEND" | "APPENDS":
                values = [self.pop()] if name == "APPEND" else self._since_mark()
                _list(self._stack[-1]).extend(values)
            case "SETITEM" | "SETITEMS":
                values = [self.pop(), self.pop()][::-1] if name == "SETITEM" else self._since_mark()
                _dictionary(self._stack[-1]).update(_pairs(values))
            case "GLOBAL":
                self._stack.append(_Global(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                function, module = self.pop(), self.pop()
                self._stack.append(_Global(str(module), str(function)))
            case "REDUCE":
                arguments, function = self.pop(), self.pop()
                self._stack.append(_call(function, arguments))
            case "BUILD":
                state = self.pop()
                _set_state(self._stack[-1], state)
            case _:
                raise BadPickle(f"it has the instruction {name}, which is refused")

    def _since_mark(self) -> list[Any]:
        values = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise BadPickle("its instructions do not fit together")
    return value


def _dictionary(value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        raise BadPickle("its instructions do not fit together")
    return value


def _pairs(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2 or not all(isinstance(key, str | bytes | int) for key in values[::2]):
        raise BadPickle("its dictionary has keys that are neither text nor numbers")
    return dict(zip(values[::2], values[1::2], strict=True))


def _call(function: Any, arguments: Any) -> Any:
    """Return what the few known calls of NumPy's pickles give, without calling them."""
    if not isinstance(function, _Global) or not isinstance(arguments, tuple):
        raise BadPickle("its instructions do not fit together")
    # numpy.core is the older name of numpy._core
    module = re.sub(r"^numpy\.core\.", "numpy._core.", function.module)
    match (module, function.name), arguments:
        case ("numpy._core.multiarray", "_reconstruct"), _:
            return _Array()
        case ("numpy", "dtype"), (str() | bytes() as code, *_):
            return _Type(code.decode("latin-1") if isinstance(code, bytes) else code)
        case ("numpy._core.numeric", "_frombuffer"), (bytes() as raw, _Type() as kind, shape, *_):
            array = _Array()
            array.content = _build_array(shape, kind, raw)
            return array
        case ("_codecs", "encode"), (str() as text, *_):
            return text.encode("latin-1")
        case ("__builtin__" | "builtins", "bytes" | "bytearray"), ():
            return b""
        case ("__builtin__" | "builtins", "bytearray"), (bytes() as raw,):
            return raw
    raise BadPickle(f"it asks for {function.module}.{function.name}, which is refused"[:150])


def _set_state(value: Any, state: Any) -> None:
    match value, state:
        case _Type(), (_, "<" | ">" | "|" | "=" | b"<" | b">" | b"|" | b"=" as order, *_):
            value.order = ">" if order in (">", b">") else "<"
        case _Array(), (_, shape, _Type() as kind, fortran, bytes() as raw) if not fortran:
            value.content = _build_array(shape, kind, raw)
        case _:
            raise BadPickle("it sets a state that is refused")


def _build_array(shape: Any, kind: _Type, raw: bytes) -> np.ndarray:
    if not isinstance(shape, tuple) or len(shape) > 8:
        raise BadPickle("its array has no shape")
    if not all(type(side) is int and 0 <= side <= len(raw) for side in shape):
        raise BadPickle("its array has a shape that its bytes do not fit")
    if math.prod(shape) * kind.build().itemsize != len(raw):
        raise BadPickle("its array has a shape that its bytes do not fit")
    return np.frombuffer(raw, kind.build()).reshape(shape)


def _finished(value: Any) -> Any:
    """Return a value, or a dictionary's values, with arrays in place of what stood for them."""
    if type(value) is dict:
        return {key: _finished_array(each) for key, each in value.items()}
    return _finished_array(value)


def _finished_array(value: Any) -> Any:
    if isinstance(value, _Global | _Type) or value is _MARK:
        raise BadPickle("what it names is refused: it has neither array nor list there")
    if not isinstance(value, _Array):
        return value
    if value.content is None:
        raise BadPickle("it has an array without content")
    return value.content
