"""What a function or an object is by itself: code, the names it reads, the state that it would be pickled with."""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any


def home(value: object) -> str | None:
    """The module in which a function was written, whatever it says of itself: ``functools.wraps`` lets it call itself
    another's. Of a class, or an object with a module, what that says."""
    scope = getattr(getattr(value, "__func__", value), "__globals__", None)
    name = scope.get("__name__") if isinstance(scope, dict) else getattr(value, "__module__", None)
    return name if isinstance(name, str) else None


def code_text(code: CodeType) -> str:
    """The instructions and what they work on. Its file does not tell which function of that name it is: two may stand
    there, in one line even, and it may have been edited since."""
    constants = ", ".join(map(_constant, code.co_consts))
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    kind = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    handlers = getattr(code, "co_exceptiontable", b"")
    return f"code {code.co_code.hex()} {handlers.hex()} {names} {kind} ({constants})"


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return code_text(value)
    if isinstance(value, frozenset):
        return f"set {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"


def names_in(code: CodeType) -> frozenset[str]:
    """Names of globals and attributes that a function or a function in it reads; texts may be names for ``getattr``."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            names.add(constant)
    return frozenset(names)


def contents(value: object) -> tuple[Any, ...]:
    """What an object would be made of again: what makes it, of what, its state, its items.

    Raises TypeError for what cannot be made again, such as a lock.
    """
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    except Exception as error:  # of whatever package it comes from
        raise TypeError(f"a {type(value).__name__} cannot be described") from error
    if isinstance(reduced, str):  # a global of this name
        return (reduced,)
    maker, arguments, *rest = reduced
    state, items, pairs = (*rest[:3], None, None, None)[:3]
    return maker, arguments, state, list(items or ()), list(pairs or ())


def own_attributes(value: object) -> dict[str, Any]:
    """What an instance of a class derived from a number, a text or a container has beside it."""
    own = dict(sorted(getattr(value, "__dict__", {}).items()))
    return {**own, "default_factory": getattr(value, "default_factory", None)}


def members(module: ModuleType, names: frozenset[str], accepts: Any) -> Iterator[tuple[str, Any]]:
    """(path, value) of what ``module.name`` and ``module.inner.name`` may be for code with these ``names``, of those
    values that are ``wanted(module, value)``."""
    rest, visited = [(module.__name__, module)], {id(module)}
    for path, at in rest:
        for name in sorted(n for n in names if n in vars(at)):
            value = vars(at)[name]
            if not isinstance(value, ModuleType):
                if accepts(at, value):
                    yield f"{path}.{name}", value
            elif id(value) not in visited:
                visited.add(id(value))
                rest.append((f"{path}.{name}", value))


def is_code(value: object) -> bool:
    """Is it a function, a method or a class?"""
    return isinstance(value, (FunctionType, MethodType, type))
