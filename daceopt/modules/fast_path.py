"""Calls that Dynamo has compiled as a whole, without its frame evaluation: its guards are checked, its code is run.

Entering Dynamo costs tens of microseconds a call (``docs/decisions/012-dynamo.md``); a check of its guards takes two
to five. What is run is the very code that Dynamo made, which reads arguments and replays side effects; only the wrapper
that keeps Dynamo away from the backend's own code is left out, for Dynamo is not there.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from daceopt.capture.torch import function_parts
from daceopt.modules import frames
from daceopt.modules.frame_entries import count_entries
from daceopt.modules.guard_state import Guards
from daceopt.modules.written_frames import is_as_written
from daceopt.torch_internals.dynamo_frames import backend_callable, programs_of

if TYPE_CHECKING:
    from daceopt.modules.backend import Backend

_COMPILED = "__compiled_fn"

Forward = Callable[..., Any]
Program = tuple[Guards, Forward | None]  # and what runs where they hold; None: the frame is broken


class Frame:
    """A function's parameters: how the arguments of a call become the variables that guards read."""

    def __init__(self, function: types.FunctionType) -> None:
        code = function.__code__
        variadic, mapping = (bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
        plain = code.co_argcount + code.co_kwonlyargcount
        self._names = code.co_varnames[: code.co_argcount]
        self._variables = code.co_varnames[: plain + variadic + mapping]
        self._by_keyword = frozenset(code.co_varnames[code.co_posonlyargcount : plain])
        self._variadic = code.co_varnames[plain] if variadic else None
        self._mapping = code.co_varnames[plain + variadic] if mapping else None
        defaults = dict(zip(reversed(self._names), reversed(function.__defaults__ or ())))
        self._defaults = {**defaults, **(function.__kwdefaults__ or {})}
        self._cells = tuple(zip(code.co_freevars, function.__closure__ or ()))

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any] | None:
        """The variables at the start of a call; None for a call that does not fit."""
        bound = dict(zip(self._names, args))
        if self._variadic is not None:
            bound[self._variadic] = args[len(self._names) :]
        elif len(args) > len(self._names):
            return None
        if self._mapping is not None:
            bound[self._mapping] = {k: v for k, v in kwargs.items() if k not in self._by_keyword}
        if kwargs and not self._bind_keywords(bound, kwargs):
            return None
        if len(bound) < len(self._variables):
            bound = {**self._defaults, **bound}
            if len(bound) != len(self._variables):
                return None
        return self._with_cells(bound)

    def _bind_keywords(self, bound: dict[str, Any], kwargs: Mapping[str, object]) -> bool:
        """Add what is given by name; whether each name is a parameter that has no value yet."""
        for name, value in kwargs.items():
            if name in self._by_keyword:
                if name in bound:
                    return False
                bound[name] = value
            elif self._mapping is None:
                return False
        return True

    def _with_cells(self, bound: dict[str, Any]) -> dict[str, Any] | None:
        try:
            for name, cell in self._cells:
                bound[name] = cell.cell_contents
        except ValueError:  # a variable of the surrounding function that has no value yet
            return None
        return bound


class CompiledForward:
    """A forward that Dynamo compiles with ``backend``: ``run`` goes through Dynamo; what ``find`` gives for a call, one
    of its whole-frame programs, past it. ``settings``: Dynamo's.
    """

    def __init__(self, original: Forward, backend: Backend, **settings: object) -> None:
        self.original, self._parts = original, _parts(original)
        self.backend, own = backend, frames.twin(original)
        self.run = frames.compile_frames(own, backend, backend.sizes, **settings)
        self.is_stale = False  # whether a call went wrong in it: Dynamo never looks again at code in which one does
        self.broken = False  # whether Dynamo broke the frame, or has left it, so that its calls go through Dynamo
        self._function = own if isinstance(own, types.FunctionType) else None
        self._programs: dict[Any, Program] = {}  # by Dynamo's guards
        self._checked: list[tuple[Guards, Forward]] = []  # of whole frames
        self._frame = None if self._function is None else Frame(self._function)

    count_entries = staticmethod(count_entries)

    def is_of(self, forward: Forward) -> bool:
        """Whether this is what was made of ``forward`` as it is now, and may go on."""
        if self.original is not forward or self.is_stale:
            return False
        if self._parts is None:
            return True
        code, defaults, keywords = self._parts
        return forward.__code__ is code and forward.__defaults__ is defaults and forward.__kwdefaults__ is keywords

    def find(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Forward | None:
        """What runs this call, called with the same arguments; None where Dynamo has to look at it."""
        if self._frame is None or not self._checked:
            return None
        variables = self._frame.bind(args, kwargs)
        if variables is None:
            return None
        for k, (guards, program) in enumerate(self._checked):
            if guards.hold(variables):
                if k:  # the next call is probably like this one
                    self._checked = [self._checked[k], *self._checked[:k], *self._checked[k + 1 :]]
                return program
        return None

    def settle(self, args: tuple[object, ...], kwargs: Mapping[str, object], count: Callable[[], None]) -> None:
        """Nothing was compiled in a call, nor in what it called: calls like it run past Dynamo, as they are written.
        ``count`` notes such a call."""
        variables = None if self._frame is None else self._frame.bind(args, kwargs)
        if variables is None:
            return
        for key, (guards, program) in list(self._programs.items()):
            code = None if key.cache_entry is None else key.cache_entry.code
            if program is None and code is not None and is_as_written(code) and key.check(variables):
                self._programs[key] = guards, self._count(count)
                self._note_programs()

    def _count(self, count: Callable[[], None]) -> Forward:
        function = self._function
        assert function is not None

        def run(*args: object, **kwargs: object) -> object:
            count()
            return function(*args, **kwargs)

        return run

    @property
    def count(self) -> int:
        """Programs of the function, of broken frames as well, that are alive."""
        return len(self._programs)

    @property
    def code(self) -> types.CodeType | None:
        """What Dynamo compiles."""
        return None if self._function is None else self._function.__code__

    def refresh(self, is_whole: bool) -> None:
        """Take in what Dynamo has compiled since; ``is_whole``: as one graph. Where a graph breaks, what is called
        has to be run by Dynamo, too."""
        if self._function is None:
            return
        cached = programs_of(self._function.__code__, self.run.region)
        entries = [entry for entry in cached if entry.code is not None]  # the others' guards are of objects that died
        programs = self._programs
        self._programs = {e.guard_manager: programs.get(e.guard_manager) or self._program(e, is_whole) for e in entries}
        self._note_programs()

    def _note_programs(self) -> None:
        self._checked = [(guards, program) for guards, program in self._programs.values() if program is not None]
        self.broken = not self._checked

    def _program(self, entry: Any, is_whole: bool) -> Program:
        assert self._function is not None
        guards = Guards(entry.guard_manager, self._function.__globals__)
        return guards, self._unwrapped_code(entry.code) if is_whole else None

    def _unwrapped_code(self, code: types.CodeType) -> Forward | None:
        function = self._function
        assert function is not None
        if function_parts.is_in_parts(code) or code.co_freevars != function.__code__.co_freevars:
            return None
        renamed = {n: self._unwrap(n) for n in code.co_names if n.startswith(_COMPILED)}
        code = code.replace(co_names=tuple(renamed.get(n, n) for n in code.co_names))
        twin = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        twin.__kwdefaults__ = function.__kwdefaults__
        return twin

    def _unwrap(self, name: str) -> str:
        """The name, among the function's globals, of the backend's own callable behind Dynamo's ``name``."""
        assert self._function is not None
        wrapped = self._function.__globals__[name]
        inner = backend_callable(wrapped)
        if inner is None:
            return name
        plain = f"__daceopt{name}"
        self._function.__globals__[plain] = inner
        return plain


def _parts(function: Forward) -> tuple[Any, Any, Any] | None:
    """Code and defaults of a Python function."""
    if not isinstance(function, types.FunctionType):
        return None
    return function.__code__, function.__defaults__, function.__kwdefaults__
