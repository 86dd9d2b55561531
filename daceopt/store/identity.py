"""What stands for code that users give us in the keys of the cache: its text, and the values that it reads.

Two functions of one text differ by their instructions, default arguments, attributes, by what their closures hold and
by the globals they name. Of daceopt, Python and the packages whose versions are in the keys the name is enough; of
other installed packages their version and the text of the file. Objects are what they would be pickled with.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from daceopt.store.own_text import code_text, contents, home, is_code, members, names_in, own_attributes

if TYPE_CHECKING:
    import numpy as np

_SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_EXACT = frozenset((*_SIMPLE, list, tuple, set, frozenset, dict))
_VERSIONED = frozenset("torch dace numpy sympy mpmath ml_dtypes onnx onnxruntime".split())
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_WRAPPED = (staticmethod, classmethod, property, functools.cached_property, functools._lru_cache_wrapper)
_INTERNAL = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __annotations__ __qualname__ __firstlineno__ __static_attributes__ "
    "__dataclass_fields__ __dataclass_params__".split()
)
_TAKEN_APART: list[tuple[tuple[type, ...], Callable[[Any], Any]]] = []


def text_of(value: object) -> str:
    """A text that changes whenever what ``value`` (a function, a class, an instance) computes may have changed.

    Code without a file, as in a notebook, and objects that nothing stable describes give a text that never comes again:
    what the cache holds might come from an earlier version of them.
    """
    return "\n".join(_Walk().lines(value))


def take_apart(kinds: tuple[type, ...], parts: Callable[[Any], Any]) -> None:
    """Let objects of these ``kinds`` be described by ``parts(value)``, a list of values."""
    _TAKEN_APART.append((kinds, parts))


def never_again(what: str) -> str:
    """The text of what nothing stable describes: another one each time."""
    return f"{what} of process {os.getpid()}, {uuid.uuid4()}"


def is_own(module: str | None) -> bool:
    """Does a module belong to daceopt?"""
    return (module or "").partition(".")[0] == "daceopt"


class _Walk:
    """Describes a value and all it refers to, each thing and each file once."""

    def __init__(self) -> None:
        self._visited: dict[
            int, tuple[int, Any]
        ] = {}  # by identity; the value is kept, so that no other takes its place

    def lines(self, value: object) -> Iterator[str]:
        if type(value) in _SIMPLE:
            yield f"{type(value).__name__} {value!r}"
            return
        if not self._is_new(value):
            yield f"again {self._visited[id(value)][0]}"
            return
        yield from self._rule(value)(value)
        if isinstance(value, (*_SIMPLE, list, tuple, set, frozenset, Mapping)) and type(value) not in _EXACT:
            yield from self.lines(type(value))
            yield from self._parts("added", [x for item in own_attributes(value).items() for x in item])

    def _is_new(self, value: object) -> bool:
        is_new = id(value) not in self._visited
        self._visited.setdefault(id(value), (len(self._visited), value))
        return is_new

    def _rule(self, value: object) -> Callable[[Any], Iterator[str]]:
        rules: tuple[tuple[Any, Callable[[Any], Iterator[str]]], ...] = (
            *((kinds, lambda v, p=parts: self._parts(type(v).__name__, p(v))) for kinds, parts in _TAKEN_APART),
            (FunctionType, self._function),
            (MethodType, self._method),
            (Enum, lambda v: self._parts("enum", (type(v), v.name, v.value))),
            ((BuiltinFunctionType, ModuleType, type(MISSING)), self._name),
            (functools.partial, lambda p: self._parts("partial", (p.func, p.args, p.keywords))),
            (_WRAPPED, self._wrap),
            (type, self._class),
            ((list, tuple), lambda v: self._parts(type(v).__name__, v)),
            ((set, frozenset), self._set),
            (Mapping, lambda v: self._parts(type(v).__name__, [x for item in v.items() for x in item])),
        )
        return next((rule for kind, rule in rules if isinstance(value, kind)), self._object)

    def _parts(self, title: str, values: Sequence[object]) -> Iterator[str]:
        yield f"{title} of {len(values)}"
        for value in values:
            yield from self.lines(value)

    def _set(self, value: Set[object]) -> Iterator[str]:
        yield f"set {sorted(text_of(v) for v in value)}"

    def _name(self, value: object) -> Iterator[str]:
        yield f"{type(value).__name__} {getattr(value, '__module__', None)} {getattr(value, '__name__', value)}"

    def _wrap(self, value: object) -> Iterator[str]:
        inner = [getattr(value, n, None) for n in ("__func__", "func", "fget", "fset", "fdel", "__wrapped__")]
        yield from self._parts(type(value).__name__, inner)

    def _method(self, value: MethodType) -> Iterator[str]:
        yield from self._parts("method", (value.__func__, value.__self__))

    # ---------------------------------------------------------------- code

    def _function(self, function: FunctionType) -> Iterator[str]:
        module, names = home(function), names_in(function.__code__)
        yield f"function {module}.{function.__qualname__}"
        if not is_known(module):
            yield from self._source(function, module)
            yield code_text(function.__code__)
            yield from self._parts("attributes", sorted(vars(function).items()))
        if is_users(module):
            for name in sorted(names & function.__globals__.keys()):
                yield f"global {name}"
                yield from self._read(function.__globals__[name], names)
        yield from self._parts("defaults", function.__defaults__ or ())
        yield from self._parts("keyword defaults", sorted((function.__kwdefaults__ or {}).items()))
        cells = function.__closure__ or ()
        yield f"closure of {len(cells)}"
        for cell in cells:
            yield from self._read(_content(cell), names)

    def _read(self, value: object, names: frozenset[str]) -> Iterator[str]:
        """A value; of a module what code with these names may read of it: ``settings.SCALE``."""
        if not isinstance(value, ModuleType):
            yield from self.lines(value)
            return
        yield f"module {value.__name__}"
        for path, member in members(value, names, _is_told):
            yield f"member {path}"
            yield from self.lines(member)

    def _class(self, cls: type) -> Iterator[str]:
        yield f"class {cls.__module__}.{cls.__qualname__}"
        if is_known(cls.__module__):
            return
        yield from self._source(cls, cls.__module__)
        if not is_users(cls.__module__):
            return
        for base in (*cls.__bases__, type(cls)):
            yield from self.lines(base)
        for name, value in sorted(vars(cls).items()):
            if name not in _INTERNAL and not name.startswith("_abc_"):
                yield f"attribute {name}"
                yield from self._attribute(value)

    def _attribute(self, value: object) -> Iterator[str]:
        """Slots and the like, which the class statement makes, are told by its text; other descriptors hold values."""
        kind = type(value)
        if is_code(value) or isinstance(value, _WRAPPED) or not hasattr(kind, "__get__") or is_users(kind.__module__):
            yield from self.lines(value)
        else:
            yield from self._parts(kind.__name__, sorted(getattr(value, "__dict__", {}).items()))

    def _source(self, thing: Any, name: str | None) -> Iterator[str]:
        """The text of the file that defines ``thing``; of an installed package also its version."""
        if (name or "").startswith("namedtuple_"):  # which Python's own template wrote
            return
        module = sys.modules.get(name or "") or inspect.getmodule(thing)
        if module is not None and not self._is_new(module):
            return
        try:
            yield inspect.getsource(module or thing)
        except (OSError, TypeError):
            yield never_again(thing.__qualname__)
        if not is_users(name):
            yield _version((name or "").partition(".")[0])

    # ---------------------------------------------------------------- objects

    def _object(self, value: object) -> Iterator[str]:
        kind = type(value)
        if isinstance(value, _SIMPLE) and not _of_numpy(value):
            base: Any = next(k for k in kind.__mro__ if k in _SIMPLE)
            yield base.__repr__(value)
            return
        yield from self.lines(kind)
        if is_dataclass(value):
            own = {f.name: getattr(value, f.name, None) for f in fields(value)}
            yield from self._parts("fields", sorted((own | getattr(value, "__dict__", {})).items()))
        elif _of_numpy(value):
            yield from self._array(value)
        else:
            yield from self._describe(value)

    def _array(self, value: np.ndarray) -> Iterator[str]:
        yield f"{value.dtype} {getattr(value, 'shape', ())} {getattr(value, 'strides', ())}"
        yield from self._parts("objects", value.tolist()) if value.dtype.hasobject else iter((value.tobytes().hex(),))
        yield from self._parts("state", sorted(getattr(value, "__dict__", {}).items()))

    def _describe(self, value: object) -> Iterator[str]:
        """By what it is made of. Large data and an object of the user's without fields never come again."""
        kind = type(value)
        try:
            if is_users(kind.__module__) or kind is object or kind.__name__ in ("Tensor", "Parameter"):
                raise TypeError
            yield from self._parts("contents", contents(value))
        except TypeError:
            yield never_again(kind.__qualname__)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _of_numpy(value: object) -> TypeGuard[np.ndarray]:
    return type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tobytes")


def _is_told(module: ModuleType, value: object) -> bool:
    """Whether a member of a module is in a text: any of the user's modules, elsewhere what users put there."""
    kinds = tuple(kind for kinds, _ in _TAKEN_APART for kind in kinds)
    own = home(value) if is_code(value) else type(value).__module__
    return is_users(module.__name__) or is_users(own) or isinstance(value, kinds)


def is_known(name: str | None) -> bool:
    """Whether the version of daceopt, of Python or of a package that is in every key stands for a module."""
    root = (name or "").partition(".")[0]
    return is_own(root) or root in _VERSIONED or (root in sys.stdlib_module_names and root != "__main__")


@functools.cache
def is_users(name: str | None) -> bool:
    """Whether a module is neither known nor of an installed package."""
    return not is_known(name) and not _is_installed((name or "").partition(".")[0])


def _is_installed(root: str) -> bool:
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is not None and bool(_INSTALLED.search(str(Path(file))))


@functools.cache
def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package
