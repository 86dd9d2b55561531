"""Cut the loops of a kernel where its scalar code chooses by position."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile
from typing import Any, ClassVar

import dace
import sympy

from daceopt.ir.access.dataflow import address
from daceopt.ir.access.iteration import split as split_loop
from daceopt.ir.access.references import check_overlaps
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel import tasklet
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Shape
from daceopt.ir.scalar.extents import in_scalar_code
from daceopt.ir.scalar.types import DType
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.loop_form import fresh
from daceopt.transformations.hardware._index_pieces import PlainPiece, chooses, pieces
from daceopt.transformations.hardware._scheduling import KernelStep

_GAIN = 0.8  # of what is read, counted as ``PlainPiece.cost`` does
_SHARED = 16  # iterations of shared loops, from which on threads have enough of them
_PARTS = {"sum": operator.add, "max": scalar.maximum, "min": scalar.minimum, "prod": operator.mul}


@dataclass(frozen=True)
class IndexSetSplitting(KernelStep):
    """Give each part of an iteration space that is computed in another way statements of its own.

    before:  for i < n: for j < m: y[i, j] = j < k ? a[i, clamp(j)] : b[i, clamp(j - k)]     a, b: looked up, checked
    after:   for i < n: { for j_0 < k: y[i, j_0] = a[i, j_0];   for j_1 < m - k: y[i, j_1 + k] = b[i, j_1] }

    Concatenations, paddings, shifts and rolls that other kernels took in are such, and what is taken in turns (each
    even row from here, odd ones from there), whose pieces step over several rows; what is loaded at an affine place
    becomes an access, which is vectorised and not checked. ``most``: pieces of one statement (``_index_pieces.py``).
    Kernels that have a schedule keep it. What reduces is cut along the loops that it reduces over only where a kernel
    does nothing else: each piece then reduces by itself within the other loops, which share what it is put together of.
    """

    changes_dataflow: ClassVar[bool] = True

    most: int = 27

    def edit(self, loops: KernelLoops) -> Kernel | str | None:
        graph, kernel = loops.graph, loops.kernel
        if loops.is_scheduled or kernel.serial or kernel.forwarded_arrays():
            return None
        reason = None
        for k, stage in enumerate(kernel.stages):
            if not chooses(kernel, stage) or any(a.array in kernel.locals for a in stage.writes.values()):
                continue
            plain = None
            for whole, fixed in _ways(graph, kernel, k):
                plain = pieces(graph, whole, k, self.most, fixed)
                if plain is not None and _gains(kernel, whole, stage, plain):
                    return _schedule(graph, split(graph, whole, k, plain).rename_locals_apart(graph))
            reason = reason or (f"s{k} has more than {self.most} pieces that are plain" if plain is None else None)
        return reason


def _ways(graph: Graph, kernel: Kernel, statement: int) -> Iterator[tuple[Kernel, Collection[sympy.Symbol]]]:
    """Forms of the kernel in which the statement may be cut, best first, and the loops that are not to be cut."""
    reduced = _reduced_loops(kernel.stages[statement])
    parts = _in_parts(graph, kernel) if reduced else None
    if parts is not None:
        yield parts, ()
        return
    periods = _in_periods(graph, kernel, statement)
    if periods is not None:
        yield periods, _reduced_loops(periods.stages[statement])
    yield kernel, reduced


def _reduced_loops(stage: Stage) -> set[sympy.Symbol]:
    return {p for c in stage.writes for p in stage.reduced_params(c)}


def _schedule(graph: Graph, kernel: Kernel) -> Kernel:
    """In loops of its own. Raises IllegalSchedule where two iterations write an element."""
    check_overlaps(graph, kernel)
    return replace(kernel, schedule=schedule.default(kernel))


def _gains(kernel: Kernel, cut: Kernel, stage: Stage, cut_pieces: Sequence[PlainPiece]) -> bool:
    """Do the pieces, in the loops of ``cut``, read less than the statement of ``kernel``?"""
    before = PlainPiece({}, stage)
    return sum(p.cost(cut.extents) for p in cut_pieces) <= _GAIN * before.cost(kernel.extents)


def _in_periods(graph: Graph, kernel: Kernel, statement: int) -> Kernel | None:
    """A kernel in which a loop of whose iterations every second, third ... is computed in another way is two: over the
    periods, and in one, of which the pieces are. None where there is none, but one that steps through memory element by
    element, which vectors are made of, or one that does not end with a period."""
    stage = kernel.stages[statement]
    near = _side_by_side(graph, stage) | set(kernel.outer)
    for remainder in sorted((r for a in stage.assignments for r in a.expr.atoms(scalar.pymod)), key=str):
        form, period = affine(remainder.args[0], kernel.extents.keys()), remainder.args[1]
        for p, factor in form.terms if form.is_exact and period.is_Integer and not kernel.locals else ():
            extent = kernel.extents[p]
            divides = isinstance(extent, int) and extent > period > 1 and extent % int(period) == 0
            if abs(factor) == 1 and divides and p in stage.params and p not in near:
                return split_loop(kernel, p, int(period))[0]
    return None


def _in_parts(graph: Graph, kernel: Kernel) -> Kernel | None:
    """A kernel of one statement with the loops that it does not reduce over around it, so that its pieces can reduce
    into locals; None where there are too few of these, or another type than its accumulators are of."""
    (stage, *others) = kernel.stages
    parallel = [
        tuple(p for p in stage.params if p not in stage.reduced_params(c)) for c, a in stage.writes.items() if a.wcr
    ]
    kinds = {a.wcr: graph.dtype(a.array) for a in stage.writes.values() if a.wcr}
    if others or kernel.locals or len(set(parallel)) != 1 or not all(k in _PARTS for k in kinds):
        return None
    most = kernel.most(parallel[0])
    if not (isinstance(most, int) and most >= _SHARED) or not set(kinds.values()) <= {dace.float32, dace.float64}:
        return None
    params = (*parallel[0], *(p for p in stage.params if p not in parallel[0]))
    return replace(kernel, stages=[replace(stage, params=params)], outer=parallel[0])


def split(graph: Graph, kernel: Kernel, statement: int, cut_pieces: Sequence[PlainPiece]) -> Kernel:
    """``kernel`` with the pieces of one statement in its place, each over parameters of its own where it is cut.

    They share the loops before the first that is cut, or along which results are side by side: of images whose
    channels come last, channels have to be the innermost loop of each piece.
    """
    extents = dict(kernel.extents)
    pieces_as_stages: list[Stage] = []
    for k, piece in enumerate(cut_pieces):
        names = {p: fresh(f"{p}_{k}", extents) for p in piece.box}
        extents |= {names[p]: size for p, (_, size) in piece.box.items()}
        pieces_as_stages.append(_piece(piece, names))
    stages = [*kernel.stages[:statement], *pieces_as_stages, *kernel.stages[statement + 1 :]]
    outer, locals_ = kernel.outer, dict(kernel.locals)
    if len(kernel.stages) == 1 and outer:  # what ``_in_parts`` made
        stages, locals_ = (
            _put_together(kernel, pieces_as_stages) if len(pieces_as_stages) > 1 else (pieces_as_stages, {})
        )
        outer = outer if locals_ else ()
    elif len(kernel.stages) == 1 and not kernel.locals:
        inside = {p for piece in cut_pieces for p in piece.box} | _side_by_side(graph, kernel.stages[0])
        outer = tuple(takewhile(lambda p: p not in inside, kernel.stages[0].params))
        most = kernel.most(outer)
        outer = outer if not isinstance(most, int) or most >= _SHARED else ()
    used = {p for s in stages for p in s.params} | set(outer)
    extents = {p: n for p, n in extents.items() if p in used}
    return replace(kernel, extents=extents, stages=stages, outer=outer, locals=locals_)


def _side_by_side(graph: Graph, stage: Stage) -> set[sympy.Symbol]:
    """The loops along which what a statement writes has unit stride."""
    addresses = (address(graph, access) for access in stage.writes.values())
    return {p for where in addresses if where is not None for p, step in where.terms if step == 1}


def _put_together(
    kernel: Kernel, pieces_as_stages: Sequence[Stage]
) -> tuple[list[Stage], dict[str, tuple[DType, Shape]]]:
    """The pieces of what also reduces, each into a local of its own, and one statement more, which puts these together
    in the type of the accumulators."""
    (whole,) = kernel.stages
    stages, locals_, reads, code = list(pieces_as_stages), dict(kernel.locals), {}, []
    reduced = {c: a for c, a in whole.writes.items() if a.wcr}
    for connector, access in reduced.items():
        parts = []
        for k, stage in enumerate(stages):
            local = tasklet.fresh(f"{access.array}_{k}", locals_)
            locals_[local] = (dace.float64, (1,))
            stages[k] = replace(stage, writes={**stage.writes, connector: Access(local, (0,), access.wcr)})
            reads[local] = Access(local, (0,))
            parts.append(scalar.symbol(local, dace.float64))
        total = reduce(_PARTS[str(access.wcr)], parts)
        code.append(tasklet.Assignment(scalar.symbol(connector, dace.float64), total, dace.float64))
    writes = {c: replace(a, wcr=None) for c, a in reduced.items()}
    return [*stages, Stage(kernel.outer, reads, writes, tuple(code))], locals_


def _piece(piece: PlainPiece, names: Mapping[Any, Any]) -> Stage:
    """Its stage over ``names``, which count from 0. Where it begins may be a minimum of sizes, which scalar code writes
    in another way than indices do."""
    values = {p: names[p] + first for p, (first, _) in piece.box.items()}
    code = {p: names[p] + in_scalar_code(first) for p, (first, _) in piece.box.items()}
    moved = piece.stage.subs(values, tuple(names.get(p, p) for p in piece.stage.params))
    return replace(moved, assignments=tuple(a.subs(code) for a in piece.stage.assignments))
