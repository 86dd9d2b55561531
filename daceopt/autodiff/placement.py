"""The transpose of an affine read: gradients per iteration go back to the elements read; the rest is zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.affine import affine, same
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.symbols import param


def place(
    b: Builder,
    compact: str,
    named: Sequence[sympy.Symbol],
    extents: Mapping[sympy.Symbol, Dim],
    index: Sequence[Dim],
    shape: Sequence[Dim],
) -> str:
    """An array of ``shape`` whose element j is the sum of ``compact[p]`` over all p with ``index(p) == j``.

    ``compact`` has one dimension per parameter in ``named``. Written as a gather (each element looks for the iterations
    that read it), so nothing is written twice. Raises Unsupported for an index that is not affine.
    """
    if any(extents[p] == 0 for p in named):
        return b.full(shape, 0, b.graph.dtype(compact))
    target = tuple(sympy.Dummy(f"j{k}", integer=True) for k in range(len(shape)))
    solved, conditions = _solve(named, extents, index, target)
    free = [p for p in named if p not in solved]
    checks = [scalar.eq(left, right) for left, right in conditions]
    position = []
    for p in named:
        coordinate, valid = _coordinate(solved.get(p), extents[p], target, shape, p)
        position.append(coordinate)
        checks.extend(valid)
    rename = {s: param(k) for k, s in enumerate((*target, *free))}
    out = b.graph.add_array(b.label, shape, b.graph.dtype(compact))
    domain = [*shape, *(extents[p] for p in free)]
    _emit(
        b,
        compact,
        out,
        domain,
        [_rename(e, rename) for e in position],
        [_rename(e, rename) for e in checks],
        len(shape),
    )
    return out


def _solve(
    named: Sequence[sympy.Symbol],
    extents: Mapping[sympy.Symbol, Dim],
    index: Sequence[Dim],
    target: Sequence[sympy.Symbol],
) -> tuple[dict, list]:
    """Parameters as (numerator, divisor) over target coordinates and free parameters; and the equations left over."""
    solved: dict[sympy.Symbol, tuple[sympy.Expr, int]] = {}
    conditions: list[tuple[sympy.Expr, sympy.Expr]] = []
    free: set[sympy.Symbol] = set()
    fewest_first = sorted(
        zip(target, index, strict=True), key=lambda pair: len(_plain(pair[1]).free_symbols & set(named))
    )
    for j, expr in fewest_first:
        form = affine(expr, named)
        factors: dict[sympy.Symbol, Dim] = form.factors
        if not form.is_integral:
            raise Unsupported(
                f"index {expr} is not affine in {list(map(str, named))}, so its gradient cannot be placed"
            )
        open_ = [p for p in factors if p not in solved and p not in free]
        if not open_:
            conditions.append((_plain(expr), j))
            continue
        pivot = min(open_, key=lambda p: (abs(factors[p]) != 1, -_hint(extents[p]), str(p)))
        free |= set(open_) - {pivot}
        factor = factors[pivot]
        solved[pivot] = ((j - (expr - factor * pivot)) * (1 if factor > 0 else -1), abs(factor))
    return _close(solved, conditions)


def _close(
    solved: dict[sympy.Symbol, tuple[sympy.Expr, int]], conditions: list[tuple[sympy.Expr, sympy.Expr]]
) -> tuple[dict, list]:
    """Replace solved parameters inside other solutions and conditions (they refer only to parameters solved before)."""
    values: dict[sympy.Expr, sympy.Expr] = {}
    closed = {}
    for p, (numerator, divisor) in solved.items():
        numerator = sympy.expand(sympy.sympify(numerator).xreplace(values))
        closed[p] = (numerator, divisor)
        values[p] = numerator if divisor == 1 else scalar.idiv(numerator, divisor)
    return closed, [(sympy.sympify(a).xreplace(values), j) for a, j in conditions]


def _plain(expr: Dim) -> sympy.Expr:
    return sympy.expand(sympy.sympify(expr))


def _hint(extent: Dim) -> int:
    return extent if isinstance(extent, int) else 1 << 30


def _coordinate(
    solution: Any, extent: Dim, target: Sequence[sympy.Symbol], shape: Sequence[Dim], p: sympy.Symbol
) -> tuple[sympy.Expr, list[sympy.Expr]]:
    """A value of the parameter that is always inside its extent, and the conditions under which it is the true one."""
    if solution is None:
        return p, []
    numerator, divisor = solution
    if divisor == 1 and numerator in target and same(shape[list(target).index(numerator)], extent):
        return numerator, []
    value = numerator if divisor == 1 else scalar.idiv(numerator, divisor)
    checks = [scalar.ge(numerator, 0), scalar.lt(value, extent)]
    if divisor != 1:
        checks.append(scalar.eq(scalar.pymod(numerator, divisor), 0))
    return scalar.clamp(value, extent), checks


def _rename(expr: sympy.Expr, mapping: Mapping[sympy.Expr, sympy.Expr]) -> sympy.Expr:
    return sympy.sympify(expr).xreplace(dict(mapping))


def _emit(
    b: Builder,
    compact: str,
    out: str,
    domain: list[Dim],
    position: list[sympy.Expr],
    checks: list[sympy.Expr],
    rank: int,
) -> None:
    """out[j] (+)= checks ? compact[position] : 0."""
    direct = all(e.is_Symbol for e in position)
    whole = tuple(position) if direct else (None,) * len(position)

    def value(params: tuple[sympy.Symbol, ...], g: sympy.Symbol) -> sympy.Expr:
        gradient = g if direct else scalar.load(g, *position)
        if not checks:
            return gradient
        condition = checks[0]
        for check in checks[1:]:
            condition = scalar.logical_and(condition, check)
        return scalar.select(condition, gradient, 0)

    kind = ("sum",) if len(domain) > rank else ()
    b.map(
        domain,
        {"g": (compact, lambda *i: whole)},
        {"out": (out, lambda *i: tuple(i[:rank]), *kind)},
        value,
        label="place_gradient",
    )
