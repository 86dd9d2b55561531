"""Calls that Dynamo has compiled as a whole, without its frame evaluation: its guards are checked, its code is run.

Entering Dynamo costs tens of microseconds a call (``docs/decisions/012-dynamo.md``); a check of its guards takes two
to five. What is run is the very code that Dynamo made, which reads arguments and replays side effects; only the wrapper
that keeps Dynamo away from the backend's own code is left out, for Dynamo is not there.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch._dynamo import utils
from torch._dynamo.eval_frame import _get_cache_entries_for_region

_COMPILED = "__compiled_fn"
_RESUME = "__resume"
_UTILITIES = "__import_torch_dot__dynamo_dot_utils"


@cache
def _quiet_utilities() -> Any:
    """Dynamo's utilities as its code calls them, without the notes for a profiler around reading the arguments."""
    return types.SimpleNamespace(
        **{
            **vars(utils),
            "record_pregraph_bytecode_enter": lambda: None,
            "record_pregraph_bytecode_exit": lambda note: None,
        }
    )


class FastPath:
    """The whole-frame programs of one function; ``region`` is Dynamo's number for who compiled them."""

    def __init__(self, function: Callable[..., Any], region: int) -> None:
        self._function = function if isinstance(function, types.FunctionType) else None
        self._region = region
        self.broken = False  # whether Dynamo broke the frame, so that its calls go through Dynamo
        self._programs: dict[Any, Callable[..., Any] | None] = {}  # guards -> what runs; None: the frame is broken
        self._checked: list[tuple[Callable[[dict[str, Any]], bool], Callable[..., Any]]] = []
        if self._function is not None:
            code = self._function.__code__
            self._names = code.co_varnames[: code.co_argcount]
            self._simple = not code.co_kwonlyargcount and not code.co_flags & 0x0C  # neither *args nor **kwargs
            self._defaults = dict(zip(reversed(self._names), reversed(self._function.__defaults__ or ())))

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
        """What runs this call, called with the same arguments; None where Dynamo has to look at it."""
        if not self._checked:
            return None
        given = self._locals(args, kwargs)
        if given is None:
            return None
        for k, (check, program) in enumerate(self._checked):
            if check(given):
                if k:  # the next call is probably like this one
                    self._checked = [self._checked[k], *self._checked[:k], *self._checked[k + 1 :]]
                return program
        return None

    def refresh(self) -> None:
        """Take in what Dynamo has compiled since."""
        if self._function is None or not self._simple:
            return
        entries = _get_cache_entries_for_region(self._function.__code__, self._region)
        for entry in entries:
            if entry.guard_manager not in self._programs:
                self._programs[entry.guard_manager] = self._whole(entry.code)
        live = [(e.guard_manager, self._programs[e.guard_manager]) for e in entries]
        self._checked = [(guards.check, program) for guards, program in live if program is not None]
        self._programs = dict(live)
        self.broken = bool(live) and not self._checked

    def _locals(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The frame's variables at its start, as guards read them; None for a call that does not fit."""
        given = dict(zip(self._names, args))
        if len(args) > len(self._names):
            return None
        if kwargs:
            if not given.keys().isdisjoint(kwargs):
                return None
            given.update(kwargs)
        if len(given) < len(self._names):
            given = {**self._defaults, **given}
        if len(given) != len(self._names):
            return None
        assert self._function is not None
        for name, cell in zip(self._function.__code__.co_freevars, self._function.__closure__ or ()):
            given[name] = cell.cell_contents
        return given

    def _whole(self, code: types.CodeType) -> Callable[..., Any] | None:
        function = self._function
        assert function is not None
        if any(name.startswith(_RESUME) for name in code.co_names) or code.co_freevars != function.__code__.co_freevars:
            return None
        renamed = {n: self._unwrapped(n) for n in code.co_names if n.startswith(_COMPILED)}
        if _UTILITIES in code.co_names:
            renamed[_UTILITIES] = f"__daceopt{_UTILITIES}"
            function.__globals__[renamed[_UTILITIES]] = _quiet_utilities()
        code = code.replace(co_names=tuple(renamed.get(n, n) for n in code.co_names))
        twin = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        twin.__kwdefaults__ = function.__kwdefaults__
        return twin

    def _unwrapped(self, name: str) -> str:
        """The name, among the function's globals, of the backend's own callable behind Dynamo's ``name``."""
        assert self._function is not None
        wrapped = self._function.__globals__[name]
        inner = getattr(wrapped, "_torchdynamo_orig_callable", None)
        if inner is None:
            return name
        plain = f"__daceopt{name}"
        self._function.__globals__[plain] = inner
        return plain
