"""What stands for code that users give us in the keys of the cache: its text, and the values that it reads.

Two functions of one text differ by their default arguments, by what their closures hold and by the globals they name.
Of daceopt, Python and the packages whose versions are in the keys the name is enough; of other installed packages the
text of the file.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_VERSIONED = frozenset("torch dace numpy sympy mpmath ml_dtypes onnx onnxruntime".split())
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_WRAPPED = (staticmethod, classmethod, property, functools.cached_property)
_INTERNAL = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __annotations__ __qualname__ __firstlineno__ __static_attributes__ "
    "__dataclass_fields__ __dataclass_params__".split()
)


def text_of(value: Any) -> str:
    """A text that changes whenever what ``value`` (a function, a class, an instance) computes may have changed.

    Code without a file, as in a notebook, and objects that nothing stable describes give a text that never comes again:
    what the cache holds might come from an earlier version of them.
    """
    return "\n".join(_Walk().lines(value))


def never_again(what: str) -> str:
    """The text of what nothing stable describes: another one each time."""
    return f"{what} of process {os.getpid()}, {uuid.uuid4()}"


def is_own(module: str | None) -> bool:
    """Does a module belong to daceopt?"""
    return (module or "").partition(".")[0] == "daceopt"


class _Walk:
    """Describes a value and all it refers to, each thing and each file once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # by identity; the value is kept, so that no other takes its place

    def lines(self, value: Any) -> Iterator[str]:
        if isinstance(value, _SIMPLE):
            yield f"{type(value).__name__} {value!r}"
            return
        if id(value) in self._seen:
            yield f"again {list(self._seen).index(id(value))}"
            return
        self._seen[id(value)] = value
        yield from self._rule(value)(value)

    def _rule(self, value: Any) -> Callable[[Any], Iterator[str]]:
        rules: tuple[tuple[Any, Callable[[Any], Iterator[str]]], ...] = (
            (FunctionType, self._function),
            (MethodType, self._method),
            ((BuiltinFunctionType, ModuleType, Enum, type(MISSING)), self._named),
            (functools.partial, lambda p: self._parts("partial", (p.func, p.args, p.keywords))),
            (_WRAPPED, self._wrapped),
            (type, self._class),
            ((list, tuple), lambda v: self._parts(type(v).__name__, v)),
            ((set, frozenset), self._set),
            (Mapping, lambda v: self._parts(type(v).__name__, [x for item in v.items() for x in item])),
        )
        return next((rule for kind, rule in rules if isinstance(value, kind)), self._object)

    def _parts(self, title: str, values: Any) -> Iterator[str]:
        yield f"{title} of {len(values)}"
        for value in values:
            yield from self.lines(value)

    def _set(self, value: Any) -> Iterator[str]:
        yield f"set {sorted(text_of(v) for v in value)}"

    def _named(self, value: Any) -> Iterator[str]:
        yield f"{type(value).__name__} {getattr(value, '__module__', None)} {getattr(value, '__name__', value)}"

    def _wrapped(self, value: Any) -> Iterator[str]:
        inner = [getattr(value, n, None) for n in ("__func__", "func", "fget", "fset", "fdel")]
        yield from self._parts(type(value).__name__, inner)

    def _method(self, value: MethodType) -> Iterator[str]:
        yield from self._parts("method", (value.__func__, value.__self__))

    # ---------------------------------------------------------------- code

    def _function(self, function: FunctionType) -> Iterator[str]:
        yield f"function {function.__module__}.{function.__qualname__}"
        if not is_known(function.__module__):
            yield from self._source(function)
        if _is_users(function.__module__):
            yield from self._globals(function)
        yield from self._parts("defaults", function.__defaults__ or ())
        yield from self._parts("keyword defaults", sorted((function.__kwdefaults__ or {}).items()))
        yield from self._parts("closure", [_content(cell) for cell in function.__closure__ or ()])

    def _globals(self, function: FunctionType) -> Iterator[str]:
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                yield f"global {name}"
                value = function.__globals__[name]
                yield from self._members(value, function) if isinstance(value, ModuleType) else self.lines(value)

    def _members(self, module: ModuleType, function: FunctionType) -> Iterator[str]:
        """What a function may read of a module of the user's: ``settings.SCALE``."""
        yield f"module {module.__name__}"
        if _is_users(module.__name__):
            for name in sorted(_names(function.__code__) & set(vars(module))):
                yield f"member {name}"
                yield from self.lines(vars(module)[name])

    def _class(self, cls: type) -> Iterator[str]:
        yield f"class {cls.__module__}.{cls.__qualname__}"
        if is_known(cls.__module__):
            return
        yield from self._source(cls)
        for base in cls.__bases__ if _is_users(cls.__module__) else ():
            yield from self.lines(base)
        for name, value in sorted(vars(cls).items()) if _is_users(cls.__module__) else ():
            if name not in _INTERNAL and not name.startswith("_abc_"):
                yield f"attribute {name}"
                yield from self._attribute(value)

    def _attribute(self, value: Any) -> Iterator[str]:
        """Slots and the like, which the class statement makes, are told by its text."""
        described = isinstance(value, (FunctionType, type, *_WRAPPED)) or not hasattr(type(value), "__get__")
        yield from self.lines(value) if described else iter((type(value).__name__,))

    def _source(self, thing: Any) -> Iterator[str]:
        """The text of the file that defines ``thing``."""
        module = inspect.getmodule(thing)
        if module is not None and id(module) in self._seen:
            return
        try:
            yield inspect.getsource(module or thing)
        except (OSError, TypeError):
            yield never_again(thing.__qualname__)
        self._seen[id(module)] = module

    # ---------------------------------------------------------------- objects

    def _object(self, value: Any) -> Iterator[str]:
        kind = type(value)
        yield from self.lines(kind)
        if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            yield f"{value.dtype} {getattr(value, 'shape', ())} {value.tobytes().hex()}"
        elif is_dataclass(value):
            yield from self._parts("fields", [getattr(value, f.name) for f in fields(value)])
        else:
            yield from self._printed(value)

    def _printed(self, value: Any) -> Iterator[str]:
        """What an installed package prints is taken for the whole truth, unless it is an address or large data."""
        kind = type(value)
        told = not _is_users(kind.__module__) and kind.__name__ not in ("Tensor", "Parameter")
        text = repr(value) if told else ""
        if text and not _ADDRESS.search(text):
            yield text
        elif not is_own(kind.__module__):
            yield never_again(kind.__qualname__)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _names(code: CodeType) -> set[str]:
    """Names of globals and attributes that a function or a function in it reads."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def is_known(name: str | None) -> bool:
    """Whether the version of daceopt, of Python or of a package that is in every key stands for a module."""
    root = (name or "").partition(".")[0]
    return is_own(root) or root in _VERSIONED or (root in sys.stdlib_module_names and root != "__main__")


@functools.cache
def _is_users(name: str | None) -> bool:
    """Whether a module is neither known nor of an installed package."""
    return not is_known(name) and not _is_installed((name or "").partition(".")[0])


def _is_installed(root: str) -> bool:
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is not None and bool(_INSTALLED.search(str(Path(file))))
