"""Numbers of Python that change from call to call: traces keep them symbols where operators ask for values."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch

from daceopt.capture.torch import marks
from daceopt.capture.torch.recurrent_shapes import RECURRENT, are_of_one_type, whole_layer
from daceopt.torch_internals.dynamo_tracing import make_constant, restart_tracing
from daceopt.torch_internals.fake_tensors import FakeTensor
from daceopt.torch_internals.pytree import tree_leaves, tree_map

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SIZED = frozenset("arange range linspace logspace".split())
"""Packets whose numbers decide about the extents of results."""

_ANY = 0.5  # where there is no example, which is 1 for integers


def _exp(x: float) -> float:
    return math.e**x


def _log(x: float, base: float | None = None) -> float:
    natural = math.log2(x) * math.log(2)  # Dynamo knows this one
    return natural if base is None else natural / _log(base)


def _log10(x: float) -> float:
    return math.log2(x) * math.log10(2)


def _pow(x: float, y: float) -> float:
    return float(x) ** float(y)


MATHEMATICS: dict[Any, Any] = {math.exp: _exp, math.log: _log, math.log10: _log10, math.pow: _pow}
"""Functions of ``math`` that PyTorch computes with no symbol -> what gives the same by those that it knows."""

_LARGEST = math.log(sys.float_info.max)


def _has_power(x: Any, y: Any) -> bool | torch.SymBool:
    """Whether ``x**y`` is a real number, and not beyond all: of two symbols the latter is not asked."""
    if isinstance(x, _SYMBOLIC):
        return x != 0 if isinstance(y, int) and y < 0 else True if isinstance(y, int) else x >= 0 if y >= 0 else x > 0
    if x <= 0 or x == 1:
        return y > 0 if x == 0 else True
    return y * math.log(x) < _LARGEST


PARTIAL: dict[Any, Callable[..., Any]] = {
    math.sqrt: lambda x: x >= 0,
    **dict.fromkeys((math.acos, math.asin), lambda x: abs(x) <= 1),
    math.log2: lambda x: x > 0,
    math.exp: lambda x: x < _LARGEST,
    **dict.fromkeys((math.cosh, math.sinh), lambda x: abs(x) <= _LARGEST),
    **dict.fromkeys((operator.truediv, operator.floordiv), lambda x, y: y != 0),
    operator.pow: _has_power,
}
"""Functions of numbers that Python does not compute for all -> whether it does for these."""


def error_of(function: Any, arguments: Sequence[Any]) -> Exception | None:
    """What Python raises for a function of these numbers, where they are not of its domain: whether they are is
    guarded. None for anything but numbers; those that only data decide are taken to be of it."""
    symbols = [x for x in arguments if isinstance(x, _SYMBOLIC)]
    if function not in PARTIAL or not symbols or not all(x.node.has_hint() for x in symbols):
        return None
    if not all(isinstance(x, (int, float, *_SYMBOLIC)) for x in arguments) or PARTIAL[function](*arguments):
        return None
    try:
        function(*map(_hint, arguments))
    except (ArithmeticError, ValueError) as error:
        return error
    return None


def is_power_below_zero(base: Any, exponent: object) -> bool:
    """Whether a float that changes, and is less than 0 (which is guarded), has a whole exponent."""
    is_whole = isinstance(base, torch.SymFloat) and base.node.has_hint() and isinstance(exponent, int)
    return is_whole and bool(base < 0)


def power_below_zero(base: float, exponent: int) -> float:
    """A power by those of numbers above 0, which are all that PyTorch has."""
    magnitude = (-base) ** exponent
    return -magnitude if exponent % 2 else magnitude


@contextmanager
def symbols_kept(mode: Any) -> Iterator[None]:
    """The shape rules of a FakeTensorMode make no number a constant that does not decide about what they say.

    They get the numbers of the example in place of symbols, and recurrent layers do not go through their steps. What
    traces the calls, above the mode, sees the symbols.
    """
    if mode is None or mode.shape_env is None:
        yield
        return
    original = mode.dispatch

    def dispatch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        if func in RECURRENT and are_of_one_type(args):
            return whole_layer(*args)
        positions, names = _numbers(func)
        args = [_example(a) if k in positions else a for k, a in enumerate(args)]
        return original(func, types, args, {k: _example(a) if k in names else a for k, a in (kwargs or {}).items()})

    with patch.object(mode, "dispatch", dispatch):
        yield


@cache
def _numbers(func: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Positions and names of the arguments of an overload that are numbers, and neither sizes nor tensors."""
    if func._schema.name.rpartition("::")[2] in _SIZED:
        return frozenset(), frozenset()
    arguments = func._schema.arguments
    names = {k: a.name for k, a in enumerate(arguments) if _is_number(a)}
    return frozenset(names), frozenset(names.values())


def _is_number(argument: Any) -> bool:
    return "number" in str(argument.type) or str(argument.type).removeprefix("Optional[").startswith("float")


def takes_float(func: Any, name: str) -> bool:
    """Whether an argument of an overload is a float by its schema."""
    return any(a.name == name and "number" not in str(a.type) and _is_number(a) for a in func._schema.arguments)


def _example(value: object) -> object:
    return tree_map(_hint, value)


def _hint(value: object) -> object:
    if not isinstance(value, _SYMBOLIC):
        return value
    if value.node.has_hint():
        return value.node.hint
    return _ANY if isinstance(value, torch.SymFloat) else 1


def stand_for_number(fake: torch.Tensor, number: object = None, like: object = None) -> torch.Tensor:
    """Let ``fake``, of rank 0 and with history nowhere, be what holds ``number`` in a trace; by default one that only
    the call knows, so that a trace which asks for its value is refused. ``like``: what it is in another trace."""
    environment = fake.fake_mode.shape_env
    if number is None:
        with environment.ignore_fresh_unbacked_symbols():
            number = environment.create_unbacked_symfloat()
        if like is not None:
            marks.note_original(number, like)
    fake.item_memo = number
    return fake


def symbols_in(values: object) -> list[Any]:
    """The numbers among ``values`` that are symbols, each once."""
    return list({id(x): x for x in tree_leaves(values) if isinstance(x, torch.SymInt | torch.SymFloat)}.values())


def holder_of(number: int | torch.SymInt, fakes: Sequence[torch.Tensor]) -> torch.Tensor:
    """A fake tensor, as those of ``fakes``, that holds a number of another trace for one that is to know it."""
    dtype = torch.float64 if isinstance(number, torch.SymFloat) else torch.int64
    with next(f.fake_mode for f in fakes if isinstance(f, FakeTensor)):
        return stand_for_number(torch.empty((), dtype=dtype), number)


def specialise(inputs: Sequence[object]) -> None:
    """Where numbers of a call became arguments of the graph, let Dynamo begin again with their values as constants."""
    memos = [getattr(x, "item_memo", None) for x in inputs]
    names = [str(m.node._expr) for m in memos if isinstance(m, torch.SymFloat)]
    if names:
        for name in names:
            make_constant(name)
        restart_tracing()
