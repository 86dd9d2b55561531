"""Numbers of a call that C++ takes by their value: a trace hands over marks, and knows them again in what it records.

An argument that a schema calls a ``float`` (the probability of a dropout, the epsilon of a normalization) cannot be a
symbol. A mark is a float that occurs nowhere else, so that the operator which gets it in the end is seen to read the
number. What C++ computes from a mark, or decides by it, is not seen: each graph is traced a second time, with other
marks, and has to be the same. Operators decide by whether a number is -1, 0, 1 or 2, and of two that lie on
one side of these alike: on which side it lies is guarded.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import sympy
import torch
from torch import fx

from daceopt.errors import Unsupported
from daceopt.scoped import scoped
from daceopt.torch_internals.dynamo_guards import is_tracing
from daceopt.torch_internals.fx_tracing import SymNode
from daceopt.torch_internals.pytree import tree_leaves, tree_map_only
from daceopt.torch_internals.replacements import replace

_FORMS: tuple[tuple[Callable[[float], float], Callable[[Any], Any]], ...] = (
    (lambda x: x, lambda x: x),
    (lambda x: -x, lambda x: -x),
    (lambda x: 1 - x, lambda x: 1 - x),
    (lambda x: x - 1, lambda x: x - 1),
    (lambda x: x - 2, lambda x: x - 2),
    (lambda x: 1 / (1 - x), lambda x: 1 / (1 - x)),
    (lambda x: 1 / x, lambda x: 1 / x),
    (lambda x: x * x, lambda x: x * x),
    (lambda x: 2 * x, lambda x: 2 * x),
    (lambda x: math.sqrt(abs(x)), torch.sym_sqrt),
)
"""What C++ computes from numbers before it hands them on, and the same of symbols: a value that is exactly that is
known again."""

_SHARES = 2**20
"""So many parts of a number, at most, are known again: labels are smoothed over classes."""

T = TypeVar("T")
Traced = TypeVar("Traced", bound=tuple[Any, ...])

_SPECIAL = (-1.0, 0.0, 1.0, 2.0)
"""Where operators change what they do: where nothing is dropped, or all, norms of their own."""

_LARGEST = 1e300
"""Numbers beyond are constants, infinity among them."""

_reader: ContextVar[Marks | None] = ContextVar("what C++ gets for a number", default=None)
_guarded: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""Environments of symbols -> numbers, as text, of which is guarded between which special ones they lie."""

_originals: WeakKeyDictionary[Any, dict[str, SymNode]] = WeakKeyDictionary()
"""Environments of symbols -> the symbols, as text, that stand for numbers of another trace -> these."""


class Marks:
    """One mark for each number that C++ asks for: on the same side of it, and in the same order, as the numbers."""

    def __init__(self, upward: bool, may_guard: bool = True) -> None:
        """``upward``: whether marks are greater than their numbers. ``may_guard``: whether numbers whose sides are not
        guarded yet may be asked for."""
        self._upward, self._may_guard, self._noise = upward, may_guard, random.Random(int(upward))
        self._marks: dict[str, float] = {}
        self._origins: dict[float, SymNode] = {}
        self._known: dict[float, Callable[[], torch.SymFloat]] = {}

    def __bool__(self) -> bool:
        return bool(self._marks)

    def read(self, node: SymNode) -> float | None:
        """The mark of a number; None for one that has to be a constant. Raises Unsupported where none can be guarded
        any more."""
        text = str(node.expr)
        if text not in self._marks:
            original = _originals.get(node.shape_env, {}).get(text, node)
            sides = _sides(original, self._may_guard)
            if sides is None:
                return None
            self._marks[text] = mark = self._between(float(original.hint), *sides)
            self._note(mark, node)
        return self._marks[text]

    def _between(self, value: float, low: float, high: float) -> float:
        """A number between ``value`` and an end."""
        share = 0.5 + self._noise.random() * 2.0**-20
        step = (high if self._upward else low) - value
        return value + math.copysign(min(abs(step), 2 * abs(value) + 2) * share, step)

    def _note(self, mark: float, node: SymNode) -> None:
        for source in (mark, ctypes.c_float(mark).value):  # some formulas round numbers
            self._origins[source] = node
            for value, form in _FORMS:
                if source > 0 or form is not torch.sym_sqrt:
                    self._known.setdefault(value(source), functools.partial(form, torch.SymFloat(node)))

    def numbers_of(self, arguments: object) -> Any:
        """Arguments of an operator with the numbers in place of their marks, and of what C++ computed from these."""
        return tree_map_only(float, self._number, arguments)

    def _number(self, value: float) -> object:
        if value in self._known:
            return self._known[value]()
        for mark, node in self._origins.items():
            parts = round(mark / value) if value and abs(mark / value) < _SHARES else 0
            if parts > 1 and mark / parts == value:
                return torch.SymFloat(node) / parts
        return value


def _sides(node: SymNode, may_guard: bool) -> tuple[float, float] | None:
    """The special numbers around a number, which are guarded; None for one that is special, or has no example."""
    if not node.has_hint():
        return None
    value, ends, text = float(node.hint), (-_LARGEST, *_SPECIAL, _LARGEST), str(node.expr)
    between = next(((low, high) for low, high in itertools.pairwise(ends) if low < value < high), None)
    guarded = _guarded.setdefault(node.shape_env, set())
    if between is None or text in guarded:
        return between
    if not may_guard:
        raise Unsupported("a derivative that asks for the value of a number that changes")
    for relation, end in zip((sympy.Gt, sympy.Lt), between, strict=True):
        node.shape_env.evaluate_expr(relation(node.expr, end))
    guarded.add(text)
    return between


def note_original(symbol: torch.SymFloat, number: torch.SymFloat) -> None:
    """Let ``symbol`` be known to stand for a number of another trace of the same environment."""
    _originals.setdefault(symbol.node.shape_env, {})[str(symbol.node.expr)] = number.node


def trace_with_marks(trace: Callable[[], Traced], is_derivative: bool) -> Traced:
    """What ``trace`` gives, of which the first is the graph that it records: numbers are symbols in it where C++ does
    no more than to hand them on. Others become constants, which are guarded; of a derivative they raise Unsupported."""
    may_guard = not is_derivative or is_tracing()
    traced, marked = _with_marks(trace, Marks(False, may_guard))
    if not marked or _texts(traced[0]) == _texts(_with_marks(trace, Marks(True, may_guard))[0][0]):
        return traced
    if is_derivative:
        raise Unsupported("a derivative computed from the value of a number that changes")
    return _with_constants(trace)


def shape_alike(run: Callable[[], T]) -> T:
    """The result of a call on fake tensors, whose shapes have to be the same whatever the numbers are that C++ asks
    for: else these become constants. So they do where Python computes a number of them (``math.hypot``, say)."""
    result, marked = _with_marks(run, Marks(False))
    if not marked or (not _has_number(result) and _shapes(result) == _shapes(_with_marks(run, Marks(True))[0])):
        return result
    return _with_constants(run)


def _has_number(value: object) -> bool:
    """Whether there is something beside tensors and symbols in a result, or a tensor whose numbers the trace knows."""
    return any(
        isinstance(x, int | float | complex | str) or getattr(x, "constant", None) is not None
        for x in tree_leaves(value)
    )


def _with_marks(run: Callable[[], T], marks: Marks) -> tuple[T, bool]:
    with scoped(_reader, marks):
        return run(), bool(marks)


def _with_constants(run: Callable[[], T]) -> T:
    with scoped(_reader, None):
        return run()


def _texts(graph: fx.GraphModule) -> list[str]:
    """What the nodes of a graph do, to be compared; equal for two traces of the same."""
    names = {node: f"%{k}" for k, node in enumerate(graph.graph.nodes)}
    return [_text(graph, node, names) for node in graph.graph.nodes]


def _text(graph: fx.GraphModule, node: fx.Node, names: dict[fx.Node, str]) -> str:
    arguments = fx.map_arg((node.args, node.kwargs), names.__getitem__)
    constant = getattr(graph, str(node.target), None) if node.op == "get_attr" else None
    elements = constant.tolist() if isinstance(constant, torch.Tensor) and constant.numel() <= 16 else None
    return f"{node.op} {node.target} {arguments} {_shapes(node.meta.get('val'))} {elements}"


def _shapes(value: object) -> list[Any]:
    """Element types and extents, but those that are symbols."""
    tensors = [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
    return [[x.dtype, *(n for n in x.shape if isinstance(n, int))] for x in tensors]


def install() -> None:
    """Let numbers of a trace be marks for C++."""
    replace("SymNode.guard_float", _read)
    replace("proxy_call", _record)


def _read(original: Callable[..., float], number: SymNode, file: str, line: int) -> float:
    """A number whose value an operator asks for."""
    marks = _reader.get()
    mark = None if marks is None else marks.read(number)
    return original(number, file, line) if mark is None else mark


def _record(original: Callable[..., Any], mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> object:
    """A call of an operator that a trace records."""
    marks = _reader.get()
    if marks:
        with mode:  # what is computed of numbers is recorded, too
            args, kwargs = marks.numbers_of((args, kwargs))
    return original(mode, func, pre_dispatch, args, kwargs)
