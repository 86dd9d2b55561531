"""Let each lane of a warp run a few neighbouring iterations, whose elements one access moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from daceopt.ir.access.references import Reference, StatementInstance
from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.edits.schedule_edits import split_loop
from daceopt.ir.scalar import types
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Loop, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, count, reduced_params

_BYTES = 16  # that one access moves


@dataclass(frozen=True)
class LaneVectors(KernelStep):
    """Cut the vector loop into as many neighbours as 16 bytes hold, which one thread runs.

    before:  vector for j < 1024: y[j] = f(x[j])
    after:   vector for j_pack < 256: unroll for j < 4: y[4*j_pack + j] = f(x[4*j_pack + j])

    It is before the steps that give the vector loop to threads. Loads and stores of neighbours become one of 16
    bytes where the printer sees that they are aligned if their array is (Rausch et al., DaCeML, section 5.4). Only
    where every access to memory walks along the loop or stands still, the loop is a known number of whole packs, and
    ``least`` packs are left for threads: enough for a warp. Where nothing is reduced, packs of loops around count as
    well, which ``block-mapping`` then merges. Sums over other loops, which lanes hold for each of their columns, stay.
    """

    least: int = 32

    def edit(self, form: KernelLoops) -> Tree | str | None:
        if any(loop.kind in (*schedule.HARDWARE, "unroll") for loop in schedule.loops(form.tree)):
            return None
        width = self._width(form)
        nests = [_pack(nest, width) for nest in form.nests]
        if width < 2 or nests == list(form.nests):
            return None
        if not all(self._walks(form, nest, width) for nest in form.nests):
            return "some of its accesses are apart, or its rows are no whole packs"
        return form.with_nests(nests)

    def _width(self, form: KernelLoops) -> int:
        """The same for all statements, which may hand values on from one iteration to the same one of another."""
        kinds = [r.buffer.dtype for b in form.bodies.values() for r in b.references() if not r.buffer.local]
        return _BYTES // max((types.itemsize(t) for t in kinds), default=_BYTES)

    def _walks(self, form: KernelLoops, nest: Nest, width: int) -> bool:
        vector = _vector(nest)
        if vector is None:
            return not nest.loops
        extent = vector.extent
        reduced = reduced_params(form, nest)
        around = nest.loops if form.single is not None and not reduced else (vector,)
        is_whole = isinstance(extent, int) and extent % width == 0 and at_least(count(around), self.least * width)
        sums = reduced - {vector.param}
        return is_whole and vector.rest is None and not sums and _side_by_side(form.bodies_of(nest), vector)


def _side_by_side(bodies: Sequence[StatementInstance], vector: Loop) -> bool:
    memory = [r for body in bodies for r in body.references() if not r.buffer.local]
    return all(_is_plain(r, vector) for r in memory) and any(r.step(vector.param) == 1 for r in memory)


def _is_plain(reference: Reference, vector: Loop) -> bool:
    return not reference.whole and reference.step(vector.param) in (None, 0, 1)


def _vector(nest: Nest) -> Loop | None:
    return nest.loops[-1] if nest.loops and nest.loops[-1].kind == "vector" else None


def _pack(nest: Nest, width: int) -> Nest:
    vector = _vector(nest)
    if vector is None or width < 2:
        return nest
    packs, pack, mapping = split_loop(vector, width, "pack")
    body = replace(pack, kind="unroll", body=schedule.substitute(nest.body, mapping))
    return Nest((*nest.loops[:-1], replace(packs, kind="vector")), body)
