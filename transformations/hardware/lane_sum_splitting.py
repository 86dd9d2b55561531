"""Bound what a vector loop sums in float32."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.edits.schedule_edits import split_loop
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least

_VECTOR = 16  # elements of the widest vectors
_CHUNK = 256


@dataclass(frozen=True)
class LaneSumSplitting(KernelStep):
    """Let the lanes of a vector loop sum in float32 for a while only, before they are added up in float64.

    before:  vector for j < n: s += x[j]
    after:   for j_chunk: vector for j < 256: s += x[256 * j_chunk + j]

    256 elements in 16 lanes are 16 additions each: the error stays below that of a pairwise sum, and the additions of
    one chunk need not wait for those of the last. Where a somewhat smaller number of whole vectors divides the loop, it
    is that, so that all chunks are equally long.
    """

    def edit(self, form: KernelLoops) -> Tree | None:
        mapping: dict[sympy.Symbol, sympy.Expr] = {}
        nests = []
        for nest in form.nests:
            if not self._is_long(form, nest):
                nests.append(nest)
                continue
            outer, inner, mapping = split_loop(nest.loops[-1], self._chunk(nest.loops[-1].extent), "chunk")
            nests.append(Nest((*nest.loops[:-1], outer, inner), schedule.substitute(nest.body, mapping)))
        return form.with_nests(nests) if mapping else None

    def _chunk(self, extent: Dim) -> int:
        whole = range(_CHUNK, _CHUNK // 2, -_VECTOR) if isinstance(extent, int) else ()
        return next((n for n in whole if extent % n == 0), _CHUNK)

    def _is_long(self, form: KernelLoops, nest: Nest) -> bool:
        if not nest.loops or nest.loops[-1].kind != "vector" or not at_least(nest.loops[-1].extent, _CHUNK + 1):
            return False
        p = nest.loops[-1].param
        writes = [r for body in form.bodies_of(nest) for r in body.writes.values() if r.wcr and p not in r.params()]
        own = [(types.compute_type(r.buffer.dtype), r.wcr) for r in writes]
        return any(schedule.accumulator_type(dtype, op) != dtype for dtype, op in own if op is not None)
