"""The gradient of scalar code: assignments are walked backward, one SymPy derivative per assignment and operand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from daceopt.ir.kernel.tasklet import Assignment, eliminate_dead
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.functions import CLASSES
from daceopt.ir.scalar.types import DType

_SELECT = CLASSES["select"]


@dataclass
class Pullback:
    """``assignments`` (adjoints, in order) and, by name, the gradient of each wanted symbol that has one."""

    assignments: list[Assignment] = field(default_factory=list)
    gradients: dict[str, sympy.Expr] = field(default_factory=dict)


def pull_back(
    assignments: Sequence[Assignment],
    seeds: Mapping[str, sympy.Expr],
    wrt: Mapping[str, DType],
    reserved: Iterable[str],
) -> Pullback:
    """Reverse mode over SSA ``assignments``.

    ``seeds``: gradient of each assigned name that has one from outside. ``wrt``: input name -> dtype. New symbols
    are named ``bar0, bar1, ...`` apart from ``reserved``. Raises Unsupported when a derivative has no scalar form.
    """
    dtypes = {**wrt, **{str(a.symbol): a.dtype for a in assignments}}
    varied = _varying(assignments, wrt)
    terms: dict[str, list[sympy.Expr]] = {name: [seed] for name, seed in seeds.items()}
    result = Pullback()
    fresh = _Fresh({*reserved, *dtypes})
    for assignment in reversed(assignments):
        if str(assignment.symbol) in wrt:  # a named load: its gradient is a result
            continue
        own = terms.pop(str(assignment.symbol), None)
        if own is None or str(assignment.symbol) not in varied:
            continue
        bar = _name(result, fresh, own, assignment.dtype)
        for symbol in sorted(assignment.expr.free_symbols, key=str):
            if str(symbol) in varied:
                _add_term(terms, assignment, symbol, bar)
    for name in wrt:
        if name in terms:
            result.gradients[name] = _name(result, fresh, terms[name], dtypes[name])
    return result


def needed_assignments(
    assignments: Sequence[Assignment], results: Iterable[sympy.Expr]
) -> tuple[tuple[Assignment, ...], set[str]]:
    """The assignments that ``results`` depend on, and the names of all symbols read by either."""
    names = {str(s) for e in results for s in e.free_symbols}
    chain = eliminate_dead(assignments, names)
    return chain, names | {str(s) for a in chain for s in a.expr.free_symbols}


def equal_values(
    assignments: Iterable[Assignment], dtypes: Mapping[sympy.Symbol, DType]
) -> dict[sympy.Symbol, sympy.Symbol]:
    """Symbol -> the first one that holds the same value in the same type, of those that ``assignments`` give one;
    ``dtypes``: the types of what they read."""
    types_of = dict(dtypes)
    names: dict[sympy.Symbol, sympy.Symbol] = {}
    first: dict[tuple[sympy.Expr, DType], sympy.Symbol] = {}
    for a in assignments:
        value = a.expr.xreplace(names)
        is_same = value.is_Symbol and types_of.get(value) == a.dtype
        names[a.symbol] = value if is_same else first.setdefault((value, a.dtype), a.symbol)
        types_of[a.symbol] = a.dtype
    return names


class _Fresh:
    def __init__(self, used: set[str]):
        self._used, self._count = used, 0

    def __call__(self) -> str:
        while f"bar{self._count}" in self._used:
            self._count += 1
        self._count += 1
        return f"bar{self._count - 1}"


def _varying(assignments: Sequence[Assignment], wrt: Iterable[str]) -> set[str]:
    """Names of floats that depend on a wanted input."""
    varied = set(wrt)
    for a in assignments:
        if types.is_float(a.dtype) and any(str(s) in varied for s in a.expr.free_symbols):
            varied.add(str(a.symbol))
    return varied


def _name(result: Pullback, fresh: _Fresh, terms: Sequence[sympy.Expr], dtype: DType) -> sympy.Symbol:
    """A symbol of ``dtype`` that holds the sum of ``terms``."""
    symbol = scalar.symbol(fresh(), dtype)
    result.assignments.append(Assignment(symbol, sympy.Add(*terms), dtype))
    return symbol


def _add_term(terms: dict[str, list[sympy.Expr]], a: Assignment, symbol: sympy.Symbol, bar: sympy.Symbol) -> None:
    masks, expr = _masks(a.expr, symbol)
    derivative = _by_divisor(a, symbol)
    if derivative is not None:
        masks = sympy.S.One  # they are part of the quotient
    else:
        derivative = sympy.sympify(scalar.differentiate(expr, symbol))
    if derivative == 0:
        return
    if not expr.is_Atom and expr == a.expr:
        derivative = derivative.xreplace({a.expr: a.symbol})  # exp, tanh, sigmoid: the value is at hand
    terms.setdefault(str(symbol), []).append(_times(bar * masks, derivative))


def _masks(expr: sympy.Expr, symbol: sympy.Symbol) -> tuple[sympy.Expr, sympy.Expr]:
    """Choices that are factors beside ``symbol``, and the rest: numbers that also an infinite gradient is times, unlike
    the branches of a choice."""
    factors = sympy.Mul.make_args(expr)
    masks = [f for f in factors if isinstance(f, _SELECT) and not f.has(symbol)]
    return sympy.Mul(*masks), sympy.Mul(*(f for f in factors if f not in masks))


def _by_divisor(a: Assignment, symbol: sympy.Symbol) -> sympy.Expr | None:
    """Of a quotient, alone or in a sum, made of the quotient itself: a square of the divisor leaves the range of the
    type too early."""
    terms = [term for term in sympy.Add.make_args(_without_rounding(a.expr)) if term.has(symbol)]
    varied = [f for f in sympy.Mul.make_args(terms[0]) if f.has(symbol)] if len(terms) == 1 else []
    if len(varied) != 1 or not _divides(varied[0], symbol):
        return None
    quotient = a.symbol if terms[0] == a.expr else scalar.apart(terms[0])
    return varied[0].exp * quotient / symbol


def _without_rounding(expr: sympy.Expr) -> sympy.Expr:
    """What conversions between floats round. Others stay: through an integer there is no gradient."""
    target = scalar.cast_target(expr)
    return _without_rounding(expr.args[0]) if target is not None and types.is_float(target) else expr


def _divides(factor: sympy.Expr, symbol: sympy.Symbol) -> bool:
    return bool(factor.is_Pow and factor.base == symbol and factor.exp.is_number and factor.exp.is_negative)


def _times(bar: sympy.Expr, factor: sympy.Expr) -> sympy.Expr:
    """``bar * factor``; a branch not taken gives an exact zero, whatever ``bar`` is there (infinite, NaN)."""
    if factor == 0:
        return sympy.S.Zero
    if isinstance(factor, _SELECT):
        condition, yes, no = factor.args
        return _SELECT(condition, _times(bar, yes), _times(bar, no))
    return bar * factor
