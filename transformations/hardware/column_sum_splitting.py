"""Let columns add up a few rows in the type of the result before they meet their accumulators."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from daceopt.cost.limits import limits
from daceopt.ir.access.references import Reference
from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.edits.schedule_edits import split_loop
from daceopt.ir.scalar import types
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import MOST_IN_OWN_TYPE, Loop, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, chosen

_LEAST, _MOST = 4, 8  # rows at a time
_WIDE = 64  # columns for which blocks of rows are worth it
_ROUNDED_ONCE = ("sum", "max", "min")  # errors of products would add up over all rows


@dataclass(frozen=True)
class ColumnSumSplitting(KernelStep):
    """Reduce a few rows in the type of the result before they are added to the columns' accumulators.

    before:  for i < m: vector for j < 512: s[j] += x[i, j]
    after:   for i_block < m / 8: vector for j < 512: unrolled for i < 8: s[j] += x[8 * i_block + i, j]

    In registers where a nest does nothing else. A nest of at most 16 rows, as those of an embedding's bag, has no other
    accumulators then. Where the rows are those of a kernel's shared loop, in an array beside the accumulators, which is
    half as large:

    before:  for i < m: { vector for j < 512: s[j] += x[i, j]; ... }
    after:   for i_block < m / 8: for i < 8: { vector for j < 512: s[j] += x[8 * i_block + i, j]; ... }

    The accumulators, of float64 for sums of float32, are read and written once for as many rows; the error is that of
    seven additions in float32. ``enough``: blocks of rows that threads need for a good balance; None: what the machine
    says (``cost/limits.py``).
    """

    enough: int | None = None

    def edit(self, form: KernelLoops) -> Tree | None:
        by_rows = self._of_shared(form) if form.shared else None
        if by_rows is not None:
            return by_rows
        rows = [self._rows(form, nest) for nest in form.nests]
        if max(rows, default=0) < _LEAST:
            return None
        return form.with_nests(_split(n, k) if k >= _LEAST else n for n, k in zip(form.nests, rows, strict=True))

    def _rows(self, form: KernelLoops, nest: Nest) -> int:
        """A divisor of the rows that every write of the nest reduces over, which leaves a loop around; else 0."""
        if len(nest.loops) < 2 or nest.loops[-1].kind != "vector" or nest.loops[-2].kind != "serial":
            return 0
        loop, vector = nest.loops[-2:]
        if not isinstance(loop.extent, int) or loop.rest is not None or isinstance(nest.body, schedule.Loop):
            return 0
        if any(e.atoms(sympy.Function, sympy.Mod) for e in _indices(nest) if loop.param in e.free_symbols):
            return 0  # of several dimensions in one: parts of it would begin in the middle of a row
        own = {loop.param, vector.param}  # a value of one iteration may be in any order of the loops
        every = [r for body in form.bodies_of(nest) for r in body.writes.values()]
        writes = [r for r in every if r.wcr is not None or not (r.buffer.local and own <= r.params())]
        own_params = [r.params() & own for r in writes if r.wcr in _ROUNDED_ONCE]
        if not own_params or len(own_params) < len(writes) or any(params != {vector.param} for params in own_params):
            return 0
        return loop.extent if loop.extent <= MOST_IN_OWN_TYPE else self._divisor(loop.extent)

    def _divisor(self, extent: int) -> int:
        return next((k for k in range(min(_MOST, extent - 1), 0, -1) if extent % k == 0), 0)

    def _of_shared(self, form: KernelLoops) -> Tree | None:
        """The innermost shared loop in blocks, where columns are sums over it."""
        loop = form.shared[-1]
        if loop.kind != "serial" or loop.rest is not None or not isinstance(loop.extent, int):
            return None
        rows, enough = self._divisor(loop.extent), chosen(self.enough, limits().enough)
        if rows < _LEAST or loop.extent // rows < enough or not any(_sums_columns(form, n, loop) for n in form.nests):
            return None
        outer, inner, mapping = split_loop(loop, rows, "block")
        return form.with_shared((*form.shared[:-1], outer, inner), mapping)


def _sums_columns(form: KernelLoops, nest: Nest, rows: Loop) -> bool:
    if not nest.loops or nest.loops[-1].kind != "vector" or not at_least(nest.loops[-1].extent, _WIDE):
        return False
    column = nest.loops[-1].param
    return any(_is_wide_sum(r, rows, column) for body in form.bodies_of(nest) for r in body.writes.values())


def _is_wide_sum(write: Reference, rows: Loop, column: schedule.Param) -> bool:
    own = types.compute_type(write.buffer.dtype)
    wide = write.wcr == "sum" and schedule.accumulator_type(own, "sum") != own
    if write.buffer.local:  # of one iteration of the shared loop
        return False
    return wide and column in write.params() and rows.param not in write.params()


def _indices(nest: Nest) -> list[sympy.Expr]:
    return [sympy.sympify(e) for do in schedule.dos(nest.body) for e in do.index]


def _split(nest: Nest, rows: int) -> Nest:
    *before, loop, vector = nest.loops
    if rows == loop.extent:
        return Nest((*before, vector), replace(loop, kind="unroll", body=nest.body))
    outer, inner, mapping = split_loop(loop, rows, "block")
    return Nest((*before, outer, vector), replace(inner, kind="unroll", body=schedule.substitute(nest.body, mapping)))
