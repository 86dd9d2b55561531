"""Choose the loops that the threads of one block run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import sympy

from daceopt.ir.access.references import StatementInstance
from daceopt.ir.edits.loops import KernelLoops, Nest, pack
from daceopt.ir.edits.schedule_edits import merged_loop, split_loop
from daceopt.ir.legality.hardware import CUDA
from daceopt.ir.scalar import types
from daceopt.ir.scalar.digits import in_terms_of
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Loop, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, count, reduced_params, with_shared_locals

_ROWS = 8  # that share a block
_LONG = 1024  # elements of a row that fill one
_FEW = 16  # iterations that one thread does alone


@dataclass(frozen=True)
class BlockMapping(KernelStep):
    """Give each block a tile of the vector loop, or a warp of it for each of a few rows.

    before:  for i < m: vector for j < n: y[i, j] = f(x[i, j])
    after:   for i < m: for j_block: block for j < 256: y[i, j + 256*j_block] = ...

    before:  for i < m: vector for j < n: s[i] += x[i, j]                              (short rows)
    after:   for i_block: block for i < 8: vector for j < n: s[i + 8*i_block] += ...

    before:  for i < m: vector for j < n: s[j] += x[i, j]                              (columns)
    after:   for i_chunk: block for i < 8: vector for j < n: s[j] += x[i + 8*i_chunk, j]

    Rows of 1024 elements or more (of statements that share them, more), and of unknown length, have a block each.
    Reduced loops of less than 16 iterations are left to one thread.
    """

    threads: int = 256

    def edit(self, form: KernelLoops) -> Tree | str | None:
        if any(loop.kind in schedule.HARDWARE for loop in schedule.loops(form.tree)):
            return None
        if form.single is None:
            return self._fuse(form)
        nest = form.single
        if not nest.loops:
            return None
        return self._reduction(form, nest) if reduced_params(form, nest) else self._elementwise(form, nest)

    # ---------------------------------------------------------------- one statement

    def _elementwise(self, form: KernelLoops, nest: Nest) -> Tree:
        """Loops of a few iterations are merged with those around them, until threads have enough to do: a device that
        starts small blocks is busy starting them."""
        *outer, inner = nest.loops
        mapping: dict[sympy.Symbol, sympy.Expr] = {}
        while outer and not at_least(inner.extent, self.threads // 2) and 0 not in (inner.extent, outer[-1].extent):
            inner, both = merged_loop(outer.pop(), inner)
            mapping = _then(mapping, both)
        block, tile, own = self._tile(inner)
        return form.with_loops([*outer, *block, tile], _then(mapping, own))

    def _tile(self, loop: Loop, size: int | None = None) -> tuple[list[Loop], Loop, dict[sympy.Symbol, sympy.Expr]]:
        """A loop in tiles of ``size`` iterations, or as many as a block has threads."""
        size = self.threads if size is None else size
        if isinstance(loop.extent, int) and loop.extent <= size and loop.rest is None:
            return [], replace(loop, kind="block"), {}
        outer, inner, mapping = split_loop(loop, size)
        return [outer], replace(inner, kind="block"), mapping

    def _reduction(self, form: KernelLoops, nest: Nest) -> Tree:
        reduced = reduced_params(form, nest)
        *others, vector = nest.loops
        parallel = [loop for loop in others if loop.param not in reduced]
        reduced_loops = [loop for loop in others if loop.param in reduced]
        if vector.param not in reduced:
            return self._columns(form, parallel, reduced_loops, vector)
        if parallel and not at_least(count([*reduced_loops, vector]), _FEW):
            block, tile, mapping = self._tile(parallel[-1])
            return form.with_loops(
                [*parallel[:-1], *block, tile, *reduced_loops, replace(vector, kind="serial")], mapping
            )
        if not parallel or at_least(dim(vector.extent * pack(nest)), _LONG):
            block, tile, mapping = self._tile(vector)
            return form.with_loops([*parallel, *reduced_loops, *block, tile], mapping)
        outer, inner, mapping = split_loop(parallel[-1], _ROWS)
        return form.with_loops([*parallel[:-1], outer, replace(inner, kind="block"), *reduced_loops, vector], mapping)

    def _columns(
        self, form: KernelLoops, parallel: Sequence[Loop], reduced_loops: Sequence[Loop], vector: Loop
    ) -> Tree:
        if not at_least(count(reduced_loops), _FEW):
            block, tile, mapping = self._tile(vector)
            return form.with_loops([*parallel, *block, tile, *reduced_loops], mapping)
        longest = max(reduced_loops, key=lambda loop: loop.extent if isinstance(loop.extent, int) else 1 << 40)
        outer, inner, mapping = split_loop(longest, _ROWS, "chunk")
        rest = [loop for loop in reduced_loops if loop is not longest]
        return form.with_loops([*parallel, outer, *rest, replace(inner, kind="block"), vector], mapping)

    # ---------------------------------------------------------------- statements that share loops

    def _fuse(self, form: KernelLoops) -> Tree | str:
        shared = {loop.param for loop in form.shared}
        if any(shared & _over(form, b, c) for b in form.bodies.values() for c in b.writes):
            return "it is reduced over loops that its statements share: blocks do not wait for one another"
        if form.shared and _bytes(form) <= CUDA.own and self._is_crossed(form):
            return self._row_per_thread(form)
        row = max((dim(nest.loops[-1].extent * pack(nest)) for nest in form.nests if nest.loops), key=_size, default=1)
        # a warp holds a row of as many: its lanes meet without the others (``row-holding``)
        if form.shared and not at_least(row, _LONG + 1) and _ROWS * _bytes(form) <= CUDA.shared // 2:
            return self._with_shared(form, _ROWS)
        return with_shared_locals(form.on(form.with_nests(self._tile_of(nest) for nest in form.nests)))

    def _tile_of(self, nest: Nest) -> Nest:
        if not nest.loops:
            return nest
        block, tile, mapping = self._tile(nest.loops[-1])
        return Nest((*nest.loops[:-1], *block, tile), schedule.substitute(nest.body, mapping))

    def _row_per_thread(self, form: KernelLoops) -> Tree:
        nests = [Nest(tuple(replace(n, kind="serial") for n in nest.loops), nest.body) for nest in form.nests]
        return self._with_shared(form.on(form.with_nests(nests)), self.threads)

    def _with_shared(self, form: KernelLoops, size: int) -> Tree:
        """The innermost shared loop in tiles of ``size`` iterations, which a block runs."""
        blocks, inner, mapping = self._tile(form.shared[-1], size)
        return form.with_shared((*form.shared[:-1], *blocks, inner), mapping)

    def _is_crossed(self, form: KernelLoops) -> bool:
        """Do more accesses walk memory along the innermost shared loop than along the loops inside?"""
        along = form.shared[-1].param
        outer = inner = 0
        for nest in form.nests:
            vector = nest.loops[-1].param if nest.loops else None
            often = _size(dim(count(nest.loops) * pack(nest)))  # what is beside loops costs next to nothing
            for reference in (r for b in form.bodies_of(nest) for r in b.references() if not r.buffer.local):
                outer += often * (reference.step(along) == 1)
                inner += often * (vector is not None and reference.step(vector) == pack(nest))
        return outer > inner and at_least(form.shared[-1].extent, _FEW)


def _then(
    first: dict[sympy.Symbol, sympy.Expr], second: dict[sympy.Symbol, sympy.Expr]
) -> dict[sympy.Symbol, sympy.Expr]:
    """What stands for parameters after one change of the loops and another one."""
    return second | {s: in_terms_of(e, second) for s, e in first.items()}


def _over(form: KernelLoops, body: StatementInstance, connector: str) -> set[sympy.Symbol]:
    """The parameters that a write to memory is reduced over."""
    stage = form.kernel.stages[body.statement]
    return set(stage.reduced_params(connector)) if stage.writes[connector].array not in form.kernel.locals else set()


def _size(extent: Dim) -> int:
    return extent if isinstance(extent, int) else 1 << 40


def _bytes(form: KernelLoops) -> int:
    """Of locals that are no registers."""
    scopes = {a.array: a.scope for a in form.locals}
    kinds = [(t, shape) for a, (t, shape) in form.kernel.locals.items() if scopes[a] != "register"]
    return sum(_size(prod(shape)) * types.itemsize(t) for t, shape in kinds)
