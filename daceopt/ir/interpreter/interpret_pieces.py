"""Iterations of a kernel in pieces, so that what the interpreter holds of their values at once is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import sympy

from daceopt.ir.kernel.kernel import Stage
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.affine import affine

MOST_ELEMENTS = 1 << 23  # of iterations that are evaluated at once
_FEW_ELEMENTS = 1 << 16  # where most iterations are looked for, to be left out
_NOTHING = {"sum": 0, "prod": 1}  # what changes no sum and no product
_DIFFERENCES: dict[type, Callable[[sympy.Expr, sympy.Expr], list[sympy.Expr]]] = {
    scalar.ge: lambda a, b: [a - b],
    scalar.gt: lambda a, b: [a - b - 1],
    scalar.le: lambda a, b: [b - a],
    scalar.lt: lambda a, b: [b - a - 1],
    scalar.eq: lambda a, b: [a - b, b - a],
}


@dataclass(frozen=True)
class LowerBound:
    """``constant`` and the parameters times their ``factors`` are 0 or more in iterations that do something."""

    constant: int
    factors: dict[str, int]


@dataclass(frozen=True)
class Iterations:
    """Those in which parameter ``params[k]`` has ``extents[k]`` values, from ``starts[k]`` on."""

    params: tuple[str, ...]
    starts: tuple[int, ...]
    extents: tuple[int, ...]

    def of(self, axes: Sequence[int]) -> Iterations:
        """Along these axes alone."""
        starts, extents = (tuple(x[k] for k in axes) for x in (self.starts, self.extents))
        return Iterations(tuple(self.params[k] for k in axes), starts, extents)

    def values(self) -> dict[str, np.ndarray]:
        """What each parameter is, along its own axis."""
        rank = range(len(self.params))
        numbers = [np.arange(start, start + n) for start, n in zip(self.starts, self.extents)]
        return {p: numbers[k].reshape([-1 if d == k else 1 for d in rank]) for k, p in enumerate(self.params)}

    def places(self) -> tuple[Any, ...]:
        """Where they are in an array of all from 0 on."""
        return (*(slice(start, start + n) for start, n in zip(self.starts, self.extents)), ...)

    def pieces(self, find_bounds: Callable[[], Sequence[LowerBound]]) -> Iterator[Iterations]:
        """The same in pieces that are small enough; of many those alone in which all bounds may hold."""
        if prod(self.extents) <= MOST_ELEMENTS:
            yield self
            return
        bounds = find_bounds()
        parts = self._within(bounds) if bounds else self._in_rows()
        yield next(parts, Iterations(self.params, self.starts, (1,) * len(self.params)))
        yield from parts

    def _in_rows(self) -> Iterator[Iterations]:
        """Outer axes are walked."""
        axis = next(k for k in range(len(self.extents)) if prod(self.extents[k + 1 :]) <= MOST_ELEMENTS)
        inner = self.extents[axis + 1 :]
        step = max(MOST_ELEMENTS // prod(inner), 1)
        for *before, first in product(*map(range, self.extents[:axis]), range(0, self.extents[axis], step)):
            extents = (*[1] * axis, min(step, self.extents[axis] - first), *inner)
            yield Iterations(self.params, (*before, first, *[0] * len(inner)), extents)

    def _within(self, bounds: Sequence[LowerBound]) -> Iterator[Iterations]:
        """Halves of halves, without those in which nothing is done."""
        rest = [self]
        while rest:
            piece = rest.pop()
            if any(piece._most(b) < 0 for b in bounds):
                continue
            if prod(piece.extents) <= min(_FEW_ELEMENTS, MOST_ELEMENTS):
                yield piece
            else:
                rest += piece._halves()

    def _most(self, bound: LowerBound) -> int:
        ends = {p: (start, start + n - 1) for p, start, n in zip(self.params, self.starts, self.extents)}
        return bound.constant + sum(max(f * end for end in ends[p]) for p, f in bound.factors.items())

    def _halves(self) -> list[Iterations]:
        axis = max(range(len(self.extents)), key=self.extents.__getitem__)
        half, n = self.extents[axis] // 2, self.extents[axis]
        parts = [(self.starts[axis] + half, n - half), (self.starts[axis], half)]
        return [
            Iterations(self.params, _put(self.starts, axis, start), _put(self.extents, axis, extent))
            for start, extent in parts
        ]


def _put(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])


def bounds_of(stage: Stage, number: Callable[[Any], int]) -> list[LowerBound]:
    """What surely holds where a stage adds something: it chooses by position, else what it adds is nothing.

    ``number``: of a size.
    """
    if len(stage.writes) != 1:
        return []
    ((connector, access),) = stage.writes.items()
    expr = next((a.expr for a in reversed(stage.assignments) if str(a.symbol) == connector), None)
    nothing = _NOTHING.get(access.wcr or "")
    if nothing is None or not isinstance(expr, scalar.select) or expr.args[2] != nothing:
        return []
    read = set(stage.reads) | {str(a.symbol) for a in stage.assignments}
    relations = [r for r in _relations(expr.args[0]) if not any(str(s) in read for s in r.free_symbols)]
    differences = (d for r in relations for d in _DIFFERENCES[type(r)](*r.args))
    forms = [form for form in map(affine, differences) if form.is_exact]
    return [LowerBound(number(f.constant), {str(p): number(factor) for p, factor in f.terms}) for f in forms]


def _relations(condition: sympy.Expr) -> list[sympy.Expr]:
    """Those that must all hold, of those that are known here."""
    if isinstance(condition, scalar.logical_and):
        return [r for part in condition.args for r in _relations(part)]
    return [condition] if type(condition) in _DIFFERENCES else []
