"""Chooses the loops of a kernel: which are merged, parallel, blocked, and which is the vector loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import sympy

from daceopt.build.references import Param, Reference, check_writes, resolve
from daceopt.ir.graph import Dim, Graph, dim
from daceopt.ir.kernel import Kernel, Stage
from daceopt.ir.tasklet import Assignment

FLAT_BLOCK = 4096  # elements of one parallel chunk of a long vector loop
COLUMN_BLOCK = 512  # columns that one thread accumulates at a time
SMALL_ARRAY = 4096  # accumulators that each thread may own
TILE = 32  # edge of a transposed tile
ENOUGH_PARALLEL = 64  # iterations of the parallel loops beyond which no further loop is collapsed


@dataclass
class Body:
    """A stage with its accesses resolved."""

    reads: dict[str, Reference]
    writes: dict[str, Reference]
    assignments: tuple[Assignment, ...]
    params: tuple[Param, ...]

    def references(self) -> list[Reference]:
        return [*self.reads.values(), *self.writes.values()]

    def scalar_params(self) -> set[Param]:
        """Parameters that the computation itself reads."""
        used = {s for a in self.assignments for s in a.expr.free_symbols}
        return used & set(self.params)

    def map(self, change: Any, params: tuple[Param, ...]) -> Body:
        """Apply ``change`` to every reference."""
        reads = {c: change(r) for c, r in self.reads.items()}
        writes = {c: change(r) for c, r in self.writes.items()}
        return Body(reads, writes, self.assignments, params)


@dataclass
class Group:
    """Stages that share one inner loop nest, outermost loop first; the last loop is vectorised."""

    loops: tuple[Param, ...]
    bodies: list[Body]
    extents: dict[Param, Dim]


@dataclass
class Nest:
    """Parallel loops around groups that run in turn. ``blocks``: inner parameter -> (block loop, size, full extent)."""

    extents: dict[Param, Dim]
    outer: tuple[Param, ...]
    groups: list[Group]
    blocks: dict[Param, tuple[Param, int, Dim]] = field(default_factory=dict)

    def bodies(self) -> list[Body]:
        return [b for g in self.groups for b in g.bodies]


def plan(graph: Graph, kernel: Kernel) -> Nest:
    """The loops of ``kernel``: several stages keep the ``outer`` loops, a single stage is arranged freely."""
    params = frozenset(kernel.extents)
    bodies = [_body(graph, kernel, s, params) for s in kernel.stages]
    used = {p for b in bodies for p in b.params} | set(kernel.outer)
    extents = {p: dim(e) for p, e in kernel.extents.items() if p in used}
    single = {p for p, e in extents.items() if e == 1}
    bodies = [_without(b, single) for b in bodies]
    extents = {p: e for p, e in extents.items() if p not in single}
    if len(bodies) == 1 and not kernel.locals:
        return _Single(bodies[0], extents).plan()
    return _plan_stages(bodies, extents, tuple(p for p in kernel.outer if p in extents))


def _body(graph: Graph, kernel: Kernel, stage: Stage, params: frozenset[Param]) -> Body:
    reads = {c: resolve(graph, kernel, a, params) for c, a in stage.reads.items()}
    writes = {c: resolve(graph, kernel, a, params) for c, a in stage.writes.items()}
    check_writes(writes, kernel.extents, kernel.label)
    return Body(reads, writes, tuple(stage.assignments), tuple(stage.params))


def _without(body: Body, gone: set[Param]) -> Body:
    zero = dict.fromkeys(gone, sympy.S.Zero)
    result = body.map(lambda r: r.drop(gone), tuple(p for p in body.params if p not in gone))
    result.assignments = tuple(a if not a.expr.free_symbols & gone else a.subs(zero) for a in body.assignments)
    return result


def _merge_all(bodies: list[Body], loops: Sequence[Param], extents: dict[Param, Dim]) -> tuple[list[Body], list[Param]]:
    """Make one loop of every two that all references step through as through one; updates ``extents``."""
    left = list(loops)
    fixed = {p for b in bodies for p in b.scalar_params()}
    fixed |= {s for b in bodies for r in b.references() for s in getattr(r.rest, "free_symbols", ())}
    while pair := _mergeable(bodies, [p for p in left if p not in fixed], extents):
        p, q = pair
        extents[q] = dim(extents[p] * extents[q])
        del extents[p]
        left.remove(p)
        bodies = [b.map(lambda r, p=p, q=q: r.merge(p, q), tuple(x for x in b.params if x != p)) for b in bodies]
    return bodies, left


def _mergeable(bodies: list[Body], loops: list[Param], extents: dict[Param, Dim]) -> tuple[Param, Param] | None:
    references = [r for b in bodies for r in b.references()]
    for p in loops:
        for q in loops:
            if p != q and all(_steps_as_one(r, p, q, extents[q]) for r in references):
                return p, q
    return None


def _steps_as_one(r: Reference, p: Param, q: Param, extent: Dim) -> bool:
    outer, inner = r.step(p), r.step(q)
    if outer is None or inner is None:
        return outer is inner
    return bool(sympy.sympify(outer - inner * extent).expand() == 0)


def _vector_loop(bodies: Iterable[Body], loops: Sequence[Param], extents: dict[Param, Dim]) -> Param:
    """The loop along which most accesses have unit stride; the last of equals wins.

    Writes weigh double, except those of reductions, which happen seldom.
    """
    references = [r for b in bodies for r in b.reads.values()]
    writes = [r for b in bodies for r in b.writes.values()]

    def score(p: Param) -> float:
        points = sum(_unit(r.step(p)) for r in references)
        points += sum((0.25 if r.wcr else 2) * _unit(r.step(p)) for r in writes if r.step(p) is not None)
        extent = extents[p]
        return points / 4 if isinstance(extent, int) and extent < 4 else points

    return max(reversed(loops), key=score)


def _unit(step: Dim | None) -> float:
    if step == 1:
        return 1.0
    return 0.5 if step is None or step == 0 else 0.0


def _count(extents: Iterable[Dim]) -> Dim:
    return dim(prod(extents))


def _at_least(extent: Dim, bound: int) -> bool:
    """Symbolic extents count as large."""
    return not isinstance(extent, int) or extent >= bound


class _Single:
    """Arranges the loops of a one-stage kernel."""

    def __init__(self, body: Body, extents: dict[Param, Dim]):
        self._extents = extents
        bodies, loops = _merge_all([body], [p for p in body.params if p in extents], extents)
        self._body, self._loops = bodies[0], loops
        self._blocks: dict[Param, tuple[Param, int, Dim]] = {}
        kept = [r.params() for r in self._body.writes.values() if r.wcr]
        self._reduced = {p for p in loops if any(p not in k for k in kept)}

    def plan(self) -> Nest:
        if not self._loops:
            return self._nest([], [])
        vector = _vector_loop([self._body], self._loops, self._extents)
        others = [p for p in self._loops if p != vector]
        if not self._reduced:
            return self._elementwise(others, vector)
        if vector in self._reduced:
            return self._row_reduction(others, vector)
        return self._column_reduction(others, vector)

    def _elementwise(self, others: list[Param], vector: Param) -> Nest:
        crossed = self._crossed(others, vector)
        if crossed is not None:
            rest = [p for p in others if p != crossed]
            outer = [*rest, self._split(crossed, TILE), self._split(vector, TILE)]
            return self._nest(outer, [crossed, vector])
        if not others:
            return self._nest([], [vector])
        parallel = self._size(others)
        if not _at_least(parallel, 16) and _at_least(self._extents[vector], 2 * FLAT_BLOCK):
            return self._nest([*others, self._split(vector, FLAT_BLOCK)], [vector])
        return self._nest(others, [vector])

    def _crossed(self, others: list[Param], vector: Param) -> Param | None:
        """The loop that has unit stride where the vector loop has not: a transposition."""
        for r in self._body.references():
            if r.step(vector) in (None, 0, 1):
                continue
            for p in others:
                if (
                    r.step(p) == 1
                    and _at_least(self._extents[p], TILE // 2)
                    and _at_least(self._extents[vector], TILE // 2)
                ):
                    return p
        return None

    def _row_reduction(self, others: list[Param], vector: Param) -> Nest:
        kept = [p for p in others if p not in self._reduced]
        inner = [p for p in others if p in self._reduced]
        if _at_least(self._size(kept), 16):
            return self._nest(kept, [*inner, vector])
        wide = next((p for p in inner if _at_least(self._extents[p], 16)), None)
        if wide is not None:
            return self._nest([*kept, wide], [*(p for p in inner if p != wide), vector])
        if _at_least(self._extents[vector], 2 * FLAT_BLOCK):
            return self._nest([*kept, self._split(vector, FLAT_BLOCK)], [*inner, vector])
        return self._nest(kept, [*inner, vector])

    def _column_reduction(self, others: list[Param], vector: Param) -> Nest:
        kept = [p for p in others if p not in self._reduced]
        reduced = [p for p in others if p in self._reduced]
        columns = self._extents[vector]
        if kept and _at_least(self._size(kept), 16):
            outer = kept if not _at_least(columns, SMALL_ARRAY + 1) else [*kept, self._split(vector, COLUMN_BLOCK)]
            return self._nest(outer, [*reduced, vector])
        if _at_least(self._size([*kept, vector]), SMALL_ARRAY + 1):
            return self._nest([*kept, self._split(vector, COLUMN_BLOCK)], [*reduced, vector])
        rows = max(reduced, key=lambda p: self._extents[p] if isinstance(self._extents[p], int) else 1 << 40)
        return self._nest([rows], [*(p for p in reduced if p != rows), *kept, vector])

    def _size(self, loops: Iterable[Param]) -> Dim:
        return _count(self._extents[p] for p in loops)

    def _split(self, p: Param, size: int) -> Param:
        """Block the loop ``p``; returns the loop over blocks, ``p`` runs inside a block from now on."""
        block = sympy.Symbol(f"{p}_block", integer=True)
        full = self._extents[p]
        self._blocks[p] = (block, size, full)
        self._extents[block] = (
            (full + size - 1) // size if isinstance(full, int) else sympy.floor((full + size - 1) / size)
        )
        self._extents[p] = min(size, full) if isinstance(full, int) else size
        body = self._body.map(lambda r: r.split(p, block, size), (*self._body.params, block))
        body.assignments = tuple(
            a.subs({p: size * block + p}) if p in a.expr.free_symbols else a for a in body.assignments
        )
        self._body = body
        if p in self._reduced:
            self._reduced.add(block)
        return block

    def _nest(self, outer: Sequence[Param], inner: Sequence[Param]) -> Nest:
        return Nest(
            self._extents,
            tuple(outer),
            [Group(tuple(inner), [self._body], {p: self._extents[p] for p in inner})],
            self._blocks,
        )


def _plan_stages(bodies: list[Body], extents: dict[Param, Dim], outer: tuple[Param, ...]) -> Nest:
    bodies, merged = _merge_all(bodies, outer, extents)
    groups = [_arrange(g, merged, extents) for g in _grouped(bodies, merged)]
    return Nest(extents, tuple(merged), groups)


def _grouped(bodies: list[Body], outer: Sequence[Param]) -> list[list[Body]]:
    groups: list[list[Body]] = []
    for body in bodies:
        if groups and _joins(groups[-1], body, outer):
            groups[-1].append(body)
        else:
            groups.append([body])
    return groups


def _joins(group: list[Body], body: Body, outer: Sequence[Param]) -> bool:
    """Same inner loops, and all that it reads of the group stands in the same iteration and is no reduction."""
    if set(group[0].params) - set(outer) != set(body.params) - set(outer):
        return False
    written = {r.buffer: r for b in group for r in b.writes.values()}
    for read in body.reads.values():
        source = written.get(read.buffer)
        if source is not None and (source.wcr or read.whole or not same_element(source, read)):
            return False
    return True


def same_element(a: Reference, b: Reference) -> bool:
    """True when both name the same element in every iteration."""
    return a.buffer == b.buffer and dict(a.steps) == dict(b.steps) and a.rest == b.rest


def _arrange(bodies: list[Body], outer: Sequence[Param], extents: dict[Param, Dim]) -> Group:
    inner = [p for p in bodies[0].params if p not in outer and p in extents]
    shared = dict(extents)
    bodies, inner = _merge_all(bodies, inner, shared)
    if not inner:
        return Group((), bodies, {})
    vector = _vector_loop(bodies, inner, shared)
    return Group((*(p for p in inner if p != vector), vector), bodies, {p: shared[p] for p in inner})
