"""Cut the loops of a kernel where its scalar code chooses by position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from daceopt.ir import schedule
from daceopt.ir.extents import in_scalar_code
from daceopt.ir.index_pieces import PlainPiece, chooses, pieces
from daceopt.ir.kernel import Kernel, Stage
from daceopt.ir.kernel_edits import put
from daceopt.ir.loop_form import fresh
from daceopt.ir.references import check_overlaps
from daceopt.passes.transform import NearMiss, Site
from daceopt.transformations.hardware._scheduling import KernelStep

_GAIN = 0.8  # of what is read, counted as ``PlainPiece.cost`` does
_SHARED = 64  # iterations of shared loops, from which on threads have enough of them


@dataclass(frozen=True)
class IndexSetSplitting(KernelStep):
    """Give each part of an iteration space that is computed in another way statements of its own.

    before:  for i < n: for j < m: y[i, j] = j < k ? a[i, clamp(j)] : b[i, clamp(j - k)]     a, b: looked up, checked
    after:   for i < n: { for j_0 < k: y[i, j_0] = a[i, j_0];   for j_1 < m - k: y[i, j_1 + k] = b[i, j_1] }

    Concatenations, paddings, shifts and rolls that other kernels took in are such; what is loaded at an affine place
    becomes an access, which is vectorised and not checked. ``most``: pieces of one statement (``ir/index_pieces.py``).
    Kernels that have a schedule keep it, and what reduces is not cut along the loops that it reduces over.
    """

    most: int = 12

    def match_at(self, graph: Any, node: Any) -> Iterable[Site | NearMiss]:
        kernel = Kernel.extract(graph, node)
        if kernel.schedule is not None or kernel.serial or kernel.forwarded():
            return
        for k, stage in enumerate(kernel.stages):
            if not chooses(kernel, stage) or any(a.array in kernel.locals for a in stage.writes.values()):
                continue
            found = pieces(graph, kernel, k, self.most)
            if found is None:
                yield NearMiss(node, f"s{k} has more than {self.most} pieces that are plain")
            elif _gains(kernel, stage, found):
                yield Site(graph, (node,), {"statement": k, "pieces": found})
                return

    def apply(self, site: Site) -> None:
        graph, (entry,) = site.graph, site.nodes
        kernel = split(Kernel.extract(graph, entry), site["statement"], site["pieces"])
        check_overlaps(graph, kernel)
        put(graph, entry, (kernel, schedule.bare(schedule.default(kernel))))


def _gains(kernel: Kernel, stage: Stage, found: Sequence[PlainPiece]) -> bool:
    before = PlainPiece({}, stage)
    return sum(p.cost(kernel.extents) for p in found) <= _GAIN * before.cost(kernel.extents)


def split(kernel: Kernel, statement: int, found: Sequence[PlainPiece]) -> Kernel:
    """``kernel`` with the pieces of one statement in its place, each over parameters of its own where it is cut."""
    extents = dict(kernel.extents)
    made: list[Stage] = []
    for k, piece in enumerate(found):
        names = {p: fresh(f"{p}_{k}", extents) for p in piece.box}
        extents |= {names[p]: size for p, (_, size) in piece.box.items()}
        made.append(_piece(piece, names))
    stages = [*kernel.stages[:statement], *made, *kernel.stages[statement + 1 :]]
    outer = kernel.outer
    if len(kernel.stages) == 1 and not kernel.locals:
        cut = {p for piece in found for p in piece.box}
        outer = tuple(takewhile(lambda p: p not in cut, kernel.stages[0].params))
        known = kernel.most(outer)
        outer = outer if not known.is_Integer or known >= _SHARED else ()
    used = {p for s in stages for p in s.params} | set(outer)
    return replace(kernel, extents={p: n for p, n in extents.items() if p in used}, stages=stages, outer=outer)


def _piece(piece: PlainPiece, names: Mapping[Any, Any]) -> Stage:
    """Its stage over ``names``, which count from 0. Where it begins may be a minimum of sizes, which scalar code writes
    in another way than indices do."""
    values = {p: names[p] + first for p, (first, _) in piece.box.items()}
    code = {p: names[p] + in_scalar_code(first) for p, (first, _) in piece.box.items()}
    moved = piece.stage.subs(values, tuple(names.get(p, p) for p in piece.stage.params))
    return replace(moved, assignments=tuple(a.subs(code) for a in piece.stage.assignments))
