"""Values of attributes and constants as text, and back: numbers, strings, lists, arrays, ONNX graphs, expressions."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.scalar import expression_text, types
from daceopt.ir.text.scanner import Scanner

Large = dict[str, np.ndarray]  # digest -> values


class LiteralKind(NamedTuple):
    """A type of values that a room above has among attributes: how it becomes lists, numbers and strings, and back.

    ``write`` raises Unsupported for a value that has no such form, ``read`` for what is none of its forms.
    """

    cls: type
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


KINDS: dict[str, LiteralKind] = {}  # the word that is before it in text -> the kind
_FEW = 8  # arrays of up to this many elements are written whole
_WORDS = {None: "none", True: "true", False: "false"}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_PROTOS = ("GraphProto", "TypeProto", "SparseTensorProto")
_TEXT = "text"  # the element type of an array of strings


# ---------------------------------------------------------------- writing


def literal(value: Any, large: Large) -> str:
    """``value`` in the notation that :func:`read` takes; arrays of many elements are put into ``large``."""
    write = next((write for kinds, write in _WRITERS if isinstance(value, kinds)), None)
    if write is not None:
        return write(value, large)
    if type(value).__name__ in _PROTOS:
        encoded = base64.b64encode(value.SerializeToString(deterministic=True)).decode()
        return f'proto {type(value).__name__} "{encoded}"'
    for word, kind in KINDS.items():
        if isinstance(value, kind.cls):
            return f"{word} {literal(kind.write(value), large)}"
    raise Unsupported(f"no text for a value of type {type(value).__name__}")


def _typed_text(value: np.ndarray, large: Large) -> str:
    shape = ", ".join(map(str, value.shape))
    if value.dtype.kind in "OU":
        return f"{_TEXT}[{shape}] {json.dumps([_string(v) for v in value.reshape(-1)])}"
    return f"{types.name_of(types.from_numpy(value.dtype))}[{shape}] {values(value, large)}"


# the first whose types a value is of writes it: bool is an int
_WRITERS: tuple[tuple[tuple[type, ...], Callable[[Any, Large], str]], ...] = (
    ((type(None),), lambda value, large: _WORDS[None]),
    ((bool, np.bool_), lambda value, large: _WORDS[bool(value)]),
    ((np.integer, np.floating), lambda value, large: repr(value.item())),
    ((int, float), lambda value, large: repr(value)),
    ((str,), lambda value, large: json.dumps(value)),
    ((list, tuple), lambda value, large: f"[{', '.join(literal(v, large) for v in value)}]"),
    ((np.ndarray,), _typed_text),
    ((sympy.Basic,), lambda value, large: f"{{{expression_text.text(value)}}}"),
)


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise Unsupported(f"no text for an array of {type(value).__name__}")


def values(array: np.ndarray, large: Large) -> str:
    """The elements in row-major order, or how many and their digest."""
    flat = array.reshape(-1)
    if array.size <= _FEW and not (array.dtype.kind not in "iub" and np.isnan(flat.astype(np.float64)).any()):
        return literal(flat.tolist(), large)
    digest = hashlib.blake2b(f"{array.dtype.name}{array.shape}".encode(), digest_size=8)
    digest.update(np.ascontiguousarray(array).tobytes())
    large[digest.hexdigest()] = array
    return f"<{array.size} values {digest.hexdigest()}>"


# ---------------------------------------------------------------- reading


def read(line: Scanner, symbol: expression_text.Symbols, large: Mapping[str, np.ndarray]) -> Any:
    """The value that is next. Raises GraphTextError."""
    if line.at('"'):
        return line.string()
    if line.take("["):
        values: list[Any] = []
        while not line.take("]"):
            values.append(read(line, symbol, large))
            if not line.at("]"):
                line.expect(",")
        return values
    if line.at("{"):
        return line.expression(line.inside("{", "}"), symbol)
    if line.take("proto "):
        return _proto(line)
    return _number(line) if line.matches(r"-?(\d|nan\b|inf\b)") else _word(line, large)


def _word(line: Scanner, large: Mapping[str, np.ndarray]) -> Any:
    name = line.name("a value")
    for value, word in _WORDS.items():
        if name == word:
            return value
    if name in KINDS:
        return KINDS[name].read(read(line, _no_symbol, large))
    if not line.at("["):
        raise line.error("a value", name)
    shape = [line.whole(extent) for extent in line.inside("[", "]").split(",") if extent.strip()]
    if name == _TEXT:
        strings = [line.string_of(v) for v in read(line, _no_symbol, large)]
        return np.array(strings, dtype=object).reshape(shape)
    return array(line, line.dtype(name), shape, large)


def array(line: Scanner, dtype: types.DType, shape: list[int], large: Mapping[str, np.ndarray]) -> np.ndarray:
    """The elements that are next, as an array of this type and shape."""
    kind, count = types.to_numpy(dtype), math.prod(shape)
    if not line.take("<"):
        values = np.array(read(line, _no_symbol, large), dtype=np.object_)
        if values.shape != (count,):
            raise line.error(f"{count} numbers for an array of shape {shape}", f"an array of shape {values.shape}")
        return np.array([line.convert(v, kind) for v in values], dtype=kind).reshape(shape)
    digest = line.inside_until(">").split()[-1]
    if digest not in large:
        raise line.error("an array that was given with the text", f"{digest}, which is none of {sorted(large)[:4]}")
    value = np.asarray(large[digest])
    if value.dtype != kind or list(value.shape) != shape:
        raise line.error(f"{kind} of shape {shape}", f"{value.dtype} of shape {list(value.shape)} with this digest")
    return value.copy()


def _number(line: Scanner) -> int | float:
    word = line.match(r"-?(nan|inf|[0-9][0-9.]*(e[-+]?[0-9]+)?)\b", "a number")
    if word in _FLOATS:
        return _FLOATS[word]
    try:
        return float(word) if any(c in word for c in ".e") else int(word)
    except ValueError as error:
        raise line.error("a number", word[:40]) from error


def _proto(line: Scanner) -> Any:
    name = line.name("the type of an ONNX message")
    if name not in _PROTOS:
        raise line.error(f"one of {', '.join(_PROTOS)}", name)
    import onnx

    proto = getattr(onnx, name)()
    try:
        proto.ParseFromString(base64.b64decode(line.string(), validate=True))
    except ValueError as error:  # protobuf's DecodeError and binascii's are both
        raise line.error(f"the bytes of a {name}", str(error)[:80]) from error
    return proto


def _no_symbol(name: str) -> Any:
    raise Unsupported(f"{name!r} among the elements of an array")
